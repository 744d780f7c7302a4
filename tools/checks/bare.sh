#!/usr/bin/env bash
# bare.sh [ORDER…] — the README's two commands on a bare machine, in an order that a newcomer may take: those named, or
# one that SEED of the environment draws.
#
# Makes a Debian root file system with a C compiler, make, Python and git in it, and nothing else that the project
# needs; clones HEAD there; and runs, each time from a new copy:
#   demo-check   make demo, then make check, as root
#   check-demo   make check, then make demo, as root
#   user         a user without root. Without pip make demo must name the packages that are missing. With pip (package
#                python3-venv) it gets CMake from there and works, and says which parts are left out; make check must
#                name what is missing. Then root installs that (tools/setup.sh check), and the same user's same folder
#                must pass make check.
# The first order runs all of `make check`; the others run the suites of `brief`, which build and test in every folder.
# Needs root, mounts and debootstrap; where one is missing it says so and counts as skipped. How long each step took is
# printed. The machine's own package sources, certificates and proxies are used inside, too.
set -u
cd "$(dirname "$0")/../.."
project=$PWD
# TRUNNION_BARE_ONLY="SUITE…" names other suites for all orders.
brief="setup packages source generated build digits model unit doubles blas vulkan webgpu oclgrind examples"
brief=${TRUNNION_BARE_ONLY:-$brief}
base=${TRUNNION_BARE_BASE:-${XDG_CACHE_HOME:-$HOME/.cache}/trunnion/bare-$(. /etc/os-release && echo "${VERSION_CODENAME:-unknown}")}
work=$(mktemp -d)
passed=0 failed=0

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }
skip() {
    echo "skipped: bare: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "it takes root to make a root file system"
unshare -m true 2>/dev/null || skip "this machine allows no mounts"
[ -e /etc/debian_version ] || skip "this machine is not Debian"
command -v debootstrap >/dev/null || apt-get install -q -y --no-install-recommends debootstrap >/dev/null 2>&1 ||
    skip "debootstrap is missing: apt-get install debootstrap"

# Everything below runs in a mount namespace of its own, so that nothing stays mounted however this ends.
if [ -z "${TRUNNION_BARE_INSIDE:-}" ]; then
    rm -rf "$work"
    TRUNNION_BARE_INSIDE=1 exec unshare -m --propagation private "$0" "$@"
fi
leave() {
    umount -R "$work/root/proc" "$work/root/sys" "$work/root/dev" 2>/dev/null
    rm -rf --one-file-system "$work/root"
}
trap 'leave; rm -rf --one-file-system "$work"' EXIT

# ---- the bare machine ------------------------------------------------------------------------------------------------

mirror() { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | grep -oE 'https?://[^ ]*debian/? *$' | head -n 1; }

make_base() {
    [ -e "$base/complete" ] && return 0
    say "making a bare root file system"
    rm -rf "$base"
    mkdir -p "$base"
    local release
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --variant=minbase --include=gcc,libc6-dev,make,python3,git,ca-certificates "$release" "$base/root" \
        $(mirror) >"$base/log" 2>&1 || { tail -n 5 "$base/log"; return 1; }
    rm -rf "$base/root/etc/apt" && cp -a /etc/apt "$base/root/etc/apt"
    cp -aL /etc/ssl/certs/. "$base/root/etc/ssl/certs/" 2>/dev/null
    cp -a /usr/share/keyrings/. "$base/root/usr/share/keyrings/" 2>/dev/null
    cp -aL /etc/resolv.conf /etc/hosts "$base/root/etc/" 2>/dev/null
    [ -e /etc/pip.conf ] && cp /etc/pip.conf "$base/root/etc/pip.conf"
    touch "$base/complete"
}

# fresh_machine — $work/root: a copy of the base with /proc, /dev and a clone of HEAD in /srv/trunnion.
fresh_machine() {
    leave
    cp -a "$base/root" "$work/root"
    chroot "$work/root" useradd -d /srv user
    git clone -q --no-hardlinks "$project" "$work/root/srv/trunnion"
    git -C "$work/root/srv/trunnion" checkout -q "$(git rev-parse HEAD)"
    chroot "$work/root" chown -R user:user /srv
    printf '[safe]\n\tdirectory = *\n' >"$work/root/etc/gitconfig"
    for folder in proc sys dev; do
        mount --rbind "/$folder" "$work/root/$folder"
    done
}

# inside USER COMMAND — runs it in the clone, with no more of our environment than proxies, certificates and pip's words.
inside() {
    local user=$1 kept=() home=/root name value
    [ "$user" = root ] || home=/srv
    while IFS='=' read -r name value; do
        kept+=("$name=$value")
    done < <(env | grep -iE '^(https?_proxy|no_proxy|pip_|ssl_cert|requests_ca|curl_ca)')
    chroot "$work/root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$home LANG=C.UTF-8 \
        JOBS="${JOBS:-2}" PATIENCE="${PATIENCE:-2}" "${kept[@]}" \
        setpriv --reuid "$user" --regid "$user" --init-groups bash -c "cd /srv/trunnion && $2" </dev/null
}

# step NAME USER WANTED COMMAND [WORDS] — one timed command; WANTED is its exit code, WORDS must stand in its output.
step() {
    local name=$1 user=$2 wanted=$3 command=$4 words=${5:-} start=$SECONDS log=$work/log code
    inside "$user" "$command" >"$log" 2>&1
    code=$?
    if [ $code = "$wanted" ] && { [ -z "$words" ] || grep -q -- "$words" "$log"; }; then
        passed=$((passed + 1))
        say "ok    $name: $command ($((SECONDS - start)) s): $(tail -n 1 "$log" | cut -c 1-90)"
        return 0
    fi
    failed=$((failed + 1))
    say "FAIL  $name: $command ($((SECONDS - start)) s): exit $code, expected $wanted${words:+ and \"$words\"}"
    grep -E '^(FAIL|ok  |none) ' "$log" | sed 's/^/      | /'
    grep -hE '^  failed: |[1-9][0-9]* failed' "$work/root/srv/trunnion"/build/check/*.log 2>/dev/null | sed 's/^/      | /'
    tail -n 40 "$log" | sed 's/^/      | /'
    return 1
}

# ---- the orders ------------------------------------------------------------------------------------------------------

demo-check() {
    step "$1" root 0 "make demo" && step "$1" root 0 "make check${TRUNNION_BARE_ONLY:+ ONLY='$TRUNNION_BARE_ONLY'}"
}
check-demo() {
    step "$1" root 0 "make check ONLY='$brief'" && step "$1" root 0 "make demo"
}
user() {
    step "$1" user 2 "make demo" "apt-get install python3-venv" &&
        step "$1" root 0 "apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv" &&
        step "$1" user 0 "make demo" "goes on without them" &&
        step "$1" user 2 "make check ONLY=setup" "apt-get install libcmocka-dev" &&
        step "$1" root 0 "tools/setup.sh check" && inside root "chown -R user:user .deps" &&
        step "$1" user 0 "make check ONLY='$brief'"
}

make_base || skip "debootstrap could not fetch a Debian system"
orders=(demo-check check-demo user)
night=$(cksum <<<"${SEED:-1}" | cut -d ' ' -f 1) # seeds of successive nights have the same remainders
for order in ${*:-${orders[night % 3]}}; do
    fresh_machine
    "$order" "$order"
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
