# Which modules of a crate import which: reads Rust sources below one directory (dir=…), prints "module import" lines with the names of
# top-level modules. Comments don't count, nor do a module's own files.
function flush(  text, rest, name, depth, c, i, word) {
	text = held
	held = ""
	while ((i = index(text, "crate::")) > 0) {
		# Not a macro's $crate.
		if (i > 1 && substr(text, i - 1, 1) == "$") { text = substr(text, i + 7); continue }
		rest = substr(text, i + 7)
		text = rest
		if (substr(rest, 1, 1) != "{") {
			match(rest, /^[a-z_0-9]+/)
			if (RLENGTH > 0) emit(substr(rest, 1, RLENGTH))
			continue
		}
		depth = 0
		word = ""
		for (i = 1; i <= length(rest); i++) {
			c = substr(rest, i, 1)
			if (c == "{") { depth++; if (depth == 1) { word = ""; continue } }
			if (c == "}") { depth--; if (depth == 0) { emit(word); break } }
			if (depth == 1 && c == ",") { emit(word); word = ""; continue }
			if (depth == 1) word = word c
		}
	}
}
function emit(name) {
	sub(/^[ \t]+/, "", name)
	sub(/[^a-z_0-9].*/, "", name)
	if (name != "" && name != module) print module, name
}
FNR == 1 {
	flush()
	module = substr(FILENAME, length(dir) + 2)
	sub(/\.rs$/, "", module)
	sub(/\/.*/, "", module)
}
{
	line = $0
	sub(/\/\/.*/, "", line)
	held = held " " line
}
END { flush() }
