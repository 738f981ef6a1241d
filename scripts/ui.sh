# Sourced by other scripts: functions for messages and timed steps. Colours and a clock are used
# only if stderr is a terminal and NO_COLOR is unset.
if [ -t 2 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
	_b=$'\e[1m' _d=$'\e[2m' _r=$'\e[31m' _g=$'\e[32m' _y=$'\e[33m' _0=$'\e[0m' _tty=1
else
	_b= _d= _r= _g= _y= _0= _tty=
fi
say() { printf '%s\n' "$*" >&2; }
warn() { printf '%swarning:%s %s\n' "$_y" "$_0" "$*" >&2; }
die() { printf '%serror:%s %s\n' "$_r" "$_0" "$*" >&2; exit 1; }
_mmss() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# After a signal, kills the current step and the parallel job ($guest of scripts/setup).
_ended() {
	trap '' INT TERM HUP
	# SIGKILL, because the first process of a PID namespace ignores all other signals from
	# outside.
	[ -z "${_step:-}" ] || kill -KILL -- "-$_step" 2>/dev/null || true
	[ -z "${guest:-}" ] || kill -TERM "$guest" 2>/dev/null || true
	wait 2>/dev/null
	[ -z "$_tty" ] || printf '\r\e[K' >&2
	say "interrupted: $_what. The next run repeats this step."
	exit "$1"
}

# step NAME KEY USUAL_SECONDS "what" FUNCTION [ARG…]
# Runs FUNCTION unless an earlier run with this KEY succeeded. Writes the output to a log and prints
# the end of the log if FUNCTION fails.
step() {
	local name=$1 key=$2 usual=$3 what=$4 log pid t0 rc=0 last=0 now
	shift 4
	mkdir -p "$BUILD/stamps" "$BUILD/logs"
	if [ "$(cat "$BUILD/stamps/$name" 2>/dev/null)" = "$key" ]; then
		say "  ${_g}ok${_0}  $what ${_d}(cached)${_0}"
		return 0
	fi
	log=$BUILD/logs/$name.log
	t0=$SECONDS
	rm -f "$BUILD/stamps/$name"
	# The step gets a process group of its own, so that all its processes can be killed
	# together. Background processes ignore Ctrl-C and would continue unseen.
	set -m
	(set -euo pipefail; "$@") >"$log" 2>&1 </dev/null &
	pid=$!
	set +m
	_step=$pid _what=$what
	trap '_ended 130' INT
	trap '_ended 143' TERM HUP
	[ -n "$_tty" ] || say "  ..  $what (usually about $(_mmss "$usual"))"
	while kill -0 "$pid" 2>/dev/null; do
		now=$((SECONDS - t0))
		if [ -n "$_tty" ]; then
			printf '\r\e[K  ..  %s  %s%s, usually about %s%s' "$what" "$_d" "$(_mmss "$now")" "$(_mmss "$usual")" "$_0" >&2
		elif [ $((now - last)) -ge 60 ]; then
			last=$now
			say "      … $(_mmss "$now"): $(tail -c 200 "$log" | tr -cd '[:print:]\n' | tail -n 1)"
		fi
		sleep 0.5
	done
	wait "$pid" || rc=$?
	_step=
	[ -z "$_tty" ] || printf '\r\e[K' >&2
	if [ "$rc" != 0 ]; then
		tail -n 40 "$log" | sed 's/^/      | /' >&2
		die "$what failed (exit status $rc). The whole log: $log"
	fi
	printf '%s\n' "$key" >"$BUILD/stamps/$name"
	say "  ${_g}ok${_0}  $what ($(_mmss $((SECONDS - t0))))"
}
