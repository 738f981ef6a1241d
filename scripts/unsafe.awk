# Checks that every use of `unsafe` has a reason. Usage: awk -f unsafe.awk FILE.rs…
#
# Each block, impl and extern block needs a separate comment `// SAFETY: …` on the lines above the
# statement. Functions and traits need a section `# Safety` in their documentation.
#
# The lints of clippy for this rule are not sufficient. They see only the code of one build
# configuration, skip the code that macros generate, and accept an empty comment or one comment for
# several blocks.
#
# Prints each missing reason, then the counts. Exit status 1 if a reason is missing.

function complain(i, text) { printf "%s:%d: %s\n", file, i, text; bad = 1 }

# Returns the code of a line, without strings and comments.
function code(s) {
	gsub(/\\./, "", s)
	gsub(/"[^"]*"/, "\"\"", s)
	sub(/\/\/.*/, "", s)
	return s
}

function trim(s) { sub(/^[ \t]+/, "", s); sub(/[ \t]+$/, "", s); return s }

# Returns 1 if a reason follows the mark in the text. A reason has two words or more. A reference to a
# C header is not a reason, because no check compares the code with the header.
function argues(text, mark,    words) {
	if (!(mark = index(text, mark))) return 0
	text = substr(text, mark)
	sub(/^[^ ]+( Safety)?/, "", text)
	text = trim(text)
	if (text ~ /^([Aa]s|[Ss]ee|[Bb]y) the header( says| promises)?\.?$/) return 0
	return split(text, words, /[ \t]+/) >= 2
}

# Returns 1 if the comment above the statement with line i gives a reason that no other use has.
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

# Returns 1 if the documentation above the item at line i has a section '# Safety' with a reason.
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
