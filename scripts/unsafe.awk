# Checks that every use of `unsafe` has a reason. Usage: awk -f unsafe.awk FILE.rs…
#
# Blocks, impls and extern blocks need a comment `// SAFETY: …` of their own on the lines above the
# statement. Functions and traits need a section `# Safety` in their documentation.
#
# clippy has lints for this too, but they see only what one build configuration compiles, skip what
# macros expand to, and accept one comment for several blocks and an empty comment. Prints each
# missing reason, then the counts. Exit status 1 if a reason is missing.

function complain(i, text) { printf "%s:%d: %s\n", file, i, text; bad = 1 }

# The code of a line: without strings and comments.
function code(s) {
	gsub(/\\./, "", s)
	gsub(/"[^"]*"/, "\"\"", s)
	sub(/\/\/.*/, "", s)
	return s
}

function trim(s) { sub(/^[ \t]+/, "", s); sub(/[ \t]+$/, "", s); return s }

# A reason is a full sentence. A mark or a reference to a C header is not enough, because no check
# compares this code with the header.
function argues(text, mark,    words) {
	if (!(mark = index(text, mark))) return 0
	text = substr(text, mark)
	sub(/^[^ ]+( Safety)?/, "", text)
	text = trim(text)
	if (text ~ /^([Aa]s|[Ss]ee|[Bb]y) the header( says| promises)?\.?$/) return 0
	return split(text, words, /[ \t]+/) >= 2
}

# The comment above the statement that line i belongs to.
function has_comment(i,    s, text, at) {
	for (i--; i > 0; i--) {
		s = trim(line[i])
		if (s ~ /^\/\/($|[^\/!])/) {
			at = i
			for (; i > 0 && trim(line[i]) ~ /^\/\/($|[^\/!])/; i--) text = substr(trim(line[i]), 3) " " text
			if (at in used) return 0
			used[at] = 1
			return argues(text, "SAFETY:")
		}
		if (s ~ /^#\[/) continue
		s = trim(code(line[i]))
		if (s == "" || s ~ /[;{},]$/) return 0
	}
	return 0
}

# The documentation above item i.
function has_section(i,    s, text) {
	for (i--; i > 0; i--) {
		s = trim(line[i])
		if (s ~ /^\/\/\//) text = substr(s, 4) " " text
		else if (s !~ /^#\[/) break
	}
	return argues(text, "# Safety")
}

function check(    i, rest) {
	for (i = 1; i <= n; i++) {
		rest = code(line[i])
		while (match(rest, /(^|[^A-Za-z0-9_])unsafe([^A-Za-z0-9_]|$)/)) {
			rest = substr(rest, RSTART)
			sub(/^[^u]?unsafe/, "", rest)
			if (rest ~ /^ *(extern *"" *)?fn *\(/) continue
			if (rest ~ /^ *((extern *"" *)?fn|trait) /) {
				items++
				if (!has_section(i)) complain(i, "unsafe function or trait without a section '# Safety' with a reason")
			} else {
				sites++
				if (!has_comment(i)) complain(i, "unsafe without a comment '// SAFETY:' of its own with a reason")
			}
		}
	}
	n = 0
	split("", used)
}

FNR == 1 { if (file != "") check(); file = FILENAME }
{ line[++n] = $0 }
END {
	if (file != "") check()
	printf "%d unsafe blocks and impls, %d unsafe functions and traits\n", sites, items
	exit bad
}
