# Runs in new namespaces: creates a throw-away root as an overlay over another one, prints the id of
# the process that holds it, and stays until its input ends. $1: a directory to mount on; $2: the
# directory with the packages; $3: the other root, such as / for this machine's.
set -eu
cd /
top=$1
root=$top/root
mount -t tmpfs -o mode=0755 edgesync-test "$top"
mkdir "$top/upper" "$top/work" "$root"
mount -t overlay -o "lowerdir=$3,upperdir=$top/upper,workdir=$top/work" edgesync-test "$root"
mkdir "$root/packages"
mount --bind "$2" "$root/packages"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
# Container images exclude documents and manual pages.
rm -f "$root"/etc/dpkg/dpkg.cfg.d/*exclude* "$root"/etc/dpkg/dpkg.cfg.d/docker*
echo 127.0.0.1 cloud.test >>"$root/etc/hosts"
echo gateway-7 >/proc/sys/kernel/hostname
ip link set lo up
# /proc is still the machine's, so this is the outer process id.
read -r pid rest </proc/self/stat
# The message comes from inside, so its reader finds the new root behind the process id.
exec chroot "$root" sh -c 'echo "ready $1"; exec cat' sh "$pid"
