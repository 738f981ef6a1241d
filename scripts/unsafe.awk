# Every place that says `unsafe` has to argue: blocks, impls and extern blocks by a comment `// SAFETY: …` of their own on the
# lines above the statement, functions and traits by a section `# Safety` in their documentation. Usage: awk -f unsafe.awk FILE.rs…
#
# clippy has lints for this too, but they see only what one build configuration compiles, skip what macros expand to,
# take one comment for several blocks and an empty one for an argument.
# Prints what is missing, then the counts; exit status 1 if anything is missing.

function complain(i, text) { printf "%s:%d: %s\n", file, i, text; bad = 1 }

# The code of a line: without strings and comments.
function code(s) {
	gsub(/\\./, "", s)
	gsub(/"[^"]*"/, "\"\"", s)
	sub(/\/\/.*/, "", s)
	return s
}

function trim(s) { sub(/^[ \t]+/, "", s); sub(/[ \t]+$/, "", s); return s }

# An argument is a sentence, not a mark, and not only a hint at a C header, which nobody checks this code against.
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
				if (!has_section(i)) complain(i, "unsafe function or trait without a section '# Safety' that says something")
			} else {
				sites++
				if (!has_comment(i)) complain(i, "unsafe without a comment '// SAFETY:' of its own that says something")
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
