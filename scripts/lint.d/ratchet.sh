# Sourced by scripts/lint. Compares counts of the tree with scripts/lint-baseline, whose numbers may
# not rise.

# ratchet [--lower]: compares the tree with the baseline, or writes the baseline again.
ratchet() {
	local last
	last=$(git log -1 --format=%H -- scripts/lint-baseline)
	{
		git ls-files -co --exclude-standard | sort -u
		echo
		[ -z "$last" ] || git diff -U0 -M "$last" --
	} | scripts/lint.d/python ratchet.py "$@"
}

# raised OLD NEW: prints the checks whose sum is higher in baseline NEW than in OLD. Skips checks that
# only one of the baselines contains.
raised() {
	awk 'FNR == 1 {file++} /^[a-z]/ {sum[file, $1] += $2; if (file == 2) names[$1]}
		END {for (n in names) if ((1, n) in sum && sum[2, n] > sum[1, n]) printf "%s: %d, was %d\n", n, sum[2, n], sum[1, n]}' "$1" "$2"
}

# Fails if a sum in the baseline is higher than in HEAD, or a sum in HEAD higher than in HEAD's first
# parent.
baseline_falls() {
	local bad=0 commit newer older higher
	[ "$(raised <(printf 'a 1 x\na 2 y\nb 0 -\n') <(printf 'a 3 z\nb 1 x\nc 4 x\n'))" = "b: 1, was 0" ] ||
		{ echo "scripts/lint.d/ratchet.sh: raised does not compare sums"; bad=1; }
	newer=$(cat scripts/lint-baseline)
	for commit in HEAD HEAD^; do
		if ! git rev-parse --quiet --verify "$commit^{commit}" >/dev/null; then
			echo "scripts/lint-baseline: not compared with $commit, which this clone does not have"
			break
		fi
		older=$(git show "$commit:scripts/lint-baseline" 2>/dev/null) || break
		higher=$(raised <(echo "$older") <(echo "$newer"))
		[ -z "$higher" ] || { echo "scripts/lint-baseline: sum is higher than in $commit: $higher"; bad=1; }
		newer=$older
	done
	return $bad
}
