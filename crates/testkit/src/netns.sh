# Two networks that only a cable joins: that of the cloud, 192.0.2.1 and 2001:db8::1, and that of a device, with 2 at the end.
# $1 is a directory with the files hosts and resolv.conf, which replace those of the machine; with $2 = ipv6 there are no other
# addresses. Prints the processes that hold the two networks, and keeps them until standard input ends.
set -eu
directory="$1"
families="$2"
mount --make-rprivate /
mount --bind "$directory/hosts" /etc/hosts
mount --bind "$directory/resolv.conf" /etc/resolv.conf
exec 3<&0
unshare --net cat <&3 >/dev/null &
device=$!
while [ "$(readlink "/proc/$device/ns/net")" = "$(readlink "/proc/$$/ns/net")" ]; do sleep 0.01; done
ip link add cloud0 type veth peer name device0 netns "$device"
side() {
    # An address of IPv6 does not include those of IPv4 here, unless a program says so.
    nsenter "--net=/proc/$1/ns/net" sh -euc '
        echo 1 >/proc/sys/net/ipv6/bindv6only
        ip link set lo up
        [ "$3" = ipv6 ] || ip address add "192.0.2.$2/24" dev "$1"
        ip address add "2001:db8::$2/64" dev "$1" nodad
        ip link set "$1" up
    ' side "$2" "$3" "$families"
}
side "$$" cloud0 1
side "$device" device0 2
echo "ready $$ $device"
exec cat <&3 >/dev/null
