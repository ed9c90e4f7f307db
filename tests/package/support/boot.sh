# Starts systemd as the first process of new namespaces, with the throw-away root as the only root that
# they have: in a chroot, the kernel refuses the user namespaces of units. Runs in the namespaces of
# that root, outside of it. Prints the path of the control group and the outer id of systemd.
# $1: the directory with the root.
#
# systemd and its units clear directories, load modules and set clocks. So nothing of this machine is
# left when they start: the devices are those that every program needs, /tmp, /run and the control
# group are their own, kernel settings are read-only.
set -eu
top=$1
[ -x "$top/root/lib/systemd/systemd" ] || {
    echo "/lib/systemd/systemd is missing" >&2
    exit 1
}
mkdir "$top/cgroup"
# Also where the controllers are in hierarchies of version 1: systemd needs none.
mount -t cgroup2 cgroup2 "$top/cgroup"
group=$(mktemp -d "$top/cgroup/edgesync-test-XXXXXX")
echo "cgroup $group"
echo 0 >"$group/cgroup.procs"
exec unshare --mount --cgroup --pid --uts --ipc --fork --kill-child=KILL sh -euc '
    # /proc is that of the machine.
    read -r pid rest </proc/self/stat
    cd "$1"
    umount -R -l dev packages
    mount -t tmpfs -o mode=0755 dev dev
    for node in null zero full random urandom tty; do
        touch "dev/$node"
        mount --bind "/dev/$node" "dev/$node"
    done
    mkdir dev/shm dev/pts
    mount -t tmpfs -o mode=1777 shm dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    mount -t tmpfs -o mode=0755 run run
    mount -t tmpfs -o mode=1777 tmp tmp
    mount -t proc proc proc
    mount --bind proc/sys proc/sys
    mount -o remount,bind,ro proc/sys
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mkdir old
    pivot_root . old
    cd /
    umount -l old
    rmdir old
    # Credentials of units reach them by propagation.
    mount --make-rshared /
    echo "ready $pid"
    exec env -i container=edgesync-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio \
        /lib/systemd/systemd --system --unit=edgesync-test.target --show-status=0
' sh "$top/root"
