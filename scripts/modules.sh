# Sourced by other scripts. Reads modules.list or the file that MODULES_LIST names.

# modules_table: prints the lines of the file without comments.
modules_table() { sed '/^#/d; /^[[:space:]]*$/d' "${MODULES_LIST:-$(dirname "${BASH_SOURCE[0]}")/../modules.list}"; }
# modules_column NAME [COLUMN VALUE]: prints the column NAME of all lines, or of the lines with VALUE
# in COLUMN.
modules_column() {
	modules_table | awk -v want="$1" -v key="${2:-}" -v value="${3:-}" '
		BEGIN {n = split("dir root crate module load unsafe doc", names, " "); for (i = 1; i <= n; i++) at[names[i]] = i}
		key == "" || $at[key] == value {print $at[want]}'
}
