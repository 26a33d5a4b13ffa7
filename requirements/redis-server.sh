#!/bin/sh
# Puts Debian's redis-server on this machine, and only there: no service is left running or
# enabled, since paceline starts a private server of its own. Does nothing if it is there.
set -eu

if command -v redis-server >/dev/null; then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "make redis: redis-server is missing, and this system has no apt-get to bring it." >&2
    echo "  Install Redis 7 or newer, so that \`redis-server\` is found in PATH." >&2
    exit 1
fi

if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        exec sudo -n sh "$0"
    fi
    echo "make redis: redis-server is missing, and only root may install it." >&2
    echo "  Run \`sudo sh $0\` once, then this again." >&2
    exit 1
fi

echo "redis: installing Debian's redis-server"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d # Debian asks it before a package may start its service; 101 is no.
[ -e "$policy" ] && policy=
trap 'rm -f "$log" $policy' EXIT
trap 'exit 130' INT TERM
if [ -n "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
wait="-o DPkg::Lock::Timeout=120"
if ! {
    apt-get $wait -y update &&
        apt-get $wait -y --no-install-recommends install redis-server
} </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    echo "make redis: apt-get could not install redis-server; its own words are above." >&2
    exit 1
fi
# A policy of the machine's own may have allowed a start.
invoke-rc.d redis-server stop >/dev/null 2>&1 || true
update-rc.d redis-server disable >/dev/null 2>&1 || true
