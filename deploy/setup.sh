#!/bin/sh
# Installs what the build and the private servers need and the machine lacks. What is there is used as it is.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
kafka_home=${KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/seckill/kafka-4.1.0}

say() { printf 'setup: %s\n' "$*"; }
has() { command -v "$1" >/dev/null 2>&1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

has_redis() {
    has redis-server && [ "$(redis-server --version | sed 's/.* v=\([0-9]*\)\..*/\1/')" -ge 7 ]
}

has_postgres() {
    has initdb && has postgres && return
    for initdb in /usr/lib/postgresql/*/bin/initdb; do [ -x "$initdb" ] && return; done
    return 1
}

has_kafka() {
    for jar in "$kafka_home"/libs/kafka_*.jar; do [ -f "$jar" ] && return; done
    return 1
}

# For the drill: a node whose clock is off.
has_faketime() {
    for library in /usr/lib*/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1; do
        [ ! -e "$library" ] || return 0
    done
    return 1
}

# Prints the Debian packages that are missing.
missing() {
    has_redis || echo redis-server
    has_postgres || echo postgresql
    # librdkafka is compiled from source, and its configure script wants a C++ compiler too.
    has gcc && has g++ || echo g++
    has make || echo make
    has_faketime || [ "$(uname)" = Darwin ] || echo libfaketime
    [ -e /usr/include/zlib.h ] || [ "$(uname)" = Darwin ] || echo zlib1g-dev
}

# The sandbox starts servers of its own: those that Debian would start beside them stay off.
apt_install() {
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'as_root rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    for package in "$@"; do
        case $package in
            redis-server | postgresql) ! has systemctl || as_root systemctl disable "$package" >/dev/null 2>&1 || true ;;
        esac
    done
}

packages=$(missing | tr '\n' ' ')
if [ -z "$packages" ]; then
    say "Redis, PostgreSQL and the build tools are there"
elif has apt-get; then
    say "installing $packages"
    # shellcheck disable=SC2086 # one word per package
    apt_install $packages
    has_redis || { say "this system packages a Redis older than 7: install a newer one and put it in PATH"; exit 1; }
else
    say "missing here, by their Debian names: $packages"
    say "  Fedora:  dnf install redis postgresql-server gcc-c++ make zlib-devel libfaketime"
    say "  macOS:   xcode-select --install; brew install redis postgresql@17, with its bin folder in PATH"
    say "  others:  Redis 7 or newer, PostgreSQL 14 or newer, a C and C++ compiler, make, zlib's headers"
    exit 1
fi

if ! has java; then
    say "WARNING: no Java: the broker built into librdkafka stands in for Apache Kafka (Kafka wants Java 17 or newer)"
elif has_kafka; then
    say "Apache Kafka is in $kafka_home"
elif [ -n "${KAFKA_HOME:-}" ]; then
    say "KAFKA_HOME is set, but there is no Kafka in $KAFKA_HOME/libs"
    exit 1
elif ! has mvn; then
    say "WARNING: no Kafka and no Maven to fetch it: the broker built into librdkafka stands in. Or set KAFKA_HOME."
else
    say "fetching Apache Kafka into $kafka_home"
    mkdir -p "$kafka_home"
    rm -rf "$kafka_home/libs.part"
    mvn -q -B -Dstyle.color=never -f "$here/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        "-DoutputDirectory=$kafka_home/libs.part"
    # Under its real name only when it is whole.
    mv "$kafka_home/libs.part" "$kafka_home/libs"
fi
