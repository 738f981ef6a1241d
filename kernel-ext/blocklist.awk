# SPDX-License-Identifier: GPL-2.0-only
# Reads the kernel's generated Rust bindings. Writes bindgen --blocklist-type options for every type
# that is complete there. Each option holds up to 500 names, because one option per name slows
# bindgen down several times.
function flush() {
	if (n) print "--blocklist-type '" list "'"
	n = 0; list = ""
}
function add(name) {
	if (name in seen) return
	seen[name] = 1
	list = list (n ? "|" : "") name
	if (++n == 500) flush()
}
# An opaque type is "pub struct x {" followed by "_unused: [u8; 0]" only. Such a type is not
# blocked.
/^pub (struct|union) [A-Za-z0-9_]+/ {
	name = $3; sub(/[^A-Za-z0-9_].*/, "", name)
	if ($0 ~ /;$/ || $0 ~ /\(/ || $0 ~ /}$/) { add(name); held = "" } else held = name
	next
}
held != "" { if ($0 !~ /_unused: \[u8; 0\]/) add(held); held = "" }
/^pub type [A-Za-z0-9_]+/ { name = $3; add(name) }
/^pub enum [A-Za-z0-9_]+/ { name = $3; add(name) }
END { flush() }
