# Starts systemd as the first process of new namespaces inside a throw-away root, with a control group of
# its own. Prints the path of the control group and the process id of systemd, both as the root has
# them. Kernel settings and devices are read-only: the units of the machine cannot change them.
set -eu
mount -t sysfs -o ro sysfs /sys
if grep -q name=systemd: /proc/self/cgroup; then
    mount -t tmpfs -o mode=0755 cgroup /sys/fs/cgroup
    groups=/sys/fs/cgroup/systemd
    mkdir "$groups"
    set -- -t cgroup -o none,name=systemd cgroup "$groups"
else
    groups=/sys/fs/cgroup
    set -- -t cgroup2 cgroup2 "$groups"
fi
mount "$@"
own=$(mktemp -d "$groups/edgesync-test-XXXXXX")
echo "cgroup $own"
echo 0 >"$own/cgroup.procs"
exec unshare --mount --cgroup --pid --fork --kill-child=KILL sh -euc '
    # /proc is still that of the root.
    read -r pid rest </proc/self/stat
    mount -t proc proc /proc
    mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    umount "$1"
    shift
    mount "$@"
    echo "ready $pid"
    exec env -i container=edgesync-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --system --unit=edgesync-test.target --show-status=0
' sh "$groups" "$@"
