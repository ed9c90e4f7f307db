# Runs in namespaces of its own: makes a throw-away root from an overlay of this machine's, says which process holds it,
# and stays until its input ends. $1: a directory to mount on; $2: the directory with the packages.
set -eu
cd /
top=$1
root=$top/root
mount -t tmpfs -o mode=0755 edgesync-test "$top"
mkdir "$top/upper" "$top/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" edgesync-test "$root"
mkdir "$root/packages"
mount --bind "$2" "$root/packages"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
# Images for containers leave documents and manual pages out.
rm -f "$root"/etc/dpkg/dpkg.cfg.d/*exclude* "$root"/etc/dpkg/dpkg.cfg.d/docker*
echo 127.0.0.1 cloud.test >>"$root/etc/hosts"
echo gateway-7 >/proc/sys/kernel/hostname
ip link set lo up
# /proc is that of the machine here, so this is the process id there.
read -r pid rest </proc/self/stat
# Ready is said inside: whoever hears it finds the new root behind the process id.
exec chroot "$root" sh -c 'echo "ready $1"; exec cat' sh "$pid"
