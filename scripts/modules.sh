# Sourced. Reads modules.list; MODULES_LIST may name another file.
# modules_table: prints its lines without comments.
modules_table() { sed '/^#/d; /^[[:space:]]*$/d' "${MODULES_LIST:-$(dirname "${BASH_SOURCE[0]}")/../modules.list}"; }
# modules_column NAME [COLUMN VALUE]: prints a column of all lines, or of the lines with VALUE in
# COLUMN.
modules_column() {
	modules_table | awk -v want="$1" -v key="${2:-}" -v value="${3:-}" '
		BEGIN {n = split("dir root crate module load unsafe doc", names, " "); for (i = 1; i <= n; i++) at[names[i]] = i}
		key == "" || $at[key] == value {print $at[want]}'
}
