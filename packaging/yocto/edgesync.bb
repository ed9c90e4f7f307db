# The edgesync agent for images with systemd, from the tarball with the static program. Copy this file
# as recipes-edge/edgesync/edgesync_VERSION.bb into a layer, and the tarballs beside it into files/.
# docs/yocto.md has the commands. For releases 5.0 (scarthgap) and newer.

SUMMARY = "Reliable sync of Kubernetes objects to edge nodes"
DESCRIPTION = "Stores the Kubernetes objects that a cloud side places on this device, and serves them to local programs."
# Of the program with all that is linked into it: third-party-notices.txt has the texts.
LICENSE = "Apache-2.0 & MIT & BSD-2-Clause & BSD-3-Clause & ISC & Zlib & PD"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

# armv7 with hardware floating point, such as Cortex-A7 and newer.
EDGESYNC_TARGET:x86-64 = "x86_64-unknown-linux-musl"
EDGESYNC_TARGET:aarch64 = "aarch64-unknown-linux-musl"
EDGESYNC_TARGET:arm = "armv7-unknown-linux-musleabihf"
COMPATIBLE_HOST = "(x86_64|aarch64|arm).*-linux.*"
SRC_URI = "file://edgesync-${PV}-${EDGESYNC_TARGET}.tar.gz"

# Releases before 5.1 unpack into WORKDIR.
UNPACKDIR ??= "${WORKDIR}"
S = "${UNPACKDIR}/edgesync-${PV}-${EDGESYNC_TARGET}"

inherit systemd useradd features_check
REQUIRED_DISTRO_FEATURES = "systemd"

# The helper is started by its socket.
SYSTEMD_SERVICE:${PN} = "edgesync.service edgesync-files.socket edgesync-files.service edgesync-hold.socket"
USERADD_PACKAGES = "${PN}"
GROUPADD_PARAM:${PN} = "--system edgesync; --system edgesync-hold"
USERADD_PARAM:${PN} = "--system --gid edgesync --home-dir /var/lib/edgesync --no-create-home --shell /sbin/nologin edgesync"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

do_install() {
    install -D -m 0755 ${S}/usr/bin/edgesync ${D}${bindir}/edgesync
    install -d ${D}${systemd_system_unitdir}
    install -m 0644 ${S}/usr/lib/systemd/system/edgesync* ${D}${systemd_system_unitdir}
    install -D -m 0644 ${S}/usr/lib/tmpfiles.d/edgesync.conf ${D}${nonarch_libdir}/tmpfiles.d/edgesync.conf
    install -D -m 0644 ${S}/usr/share/edgesync/edgesync.toml ${D}${datadir}/edgesync/edgesync.toml
    install -D -m 0644 ${S}/etc/default/edgesync ${D}${sysconfdir}/default/edgesync
    install -D -m 0644 ${S}/third-party-notices.txt ${D}${datadir}/licenses/edgesync/third-party-notices.txt
    install -d ${D}${sysconfdir}/edgesync
}

FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/tmpfiles.d ${datadir}/licenses"
CONFFILES:${PN} = "${sysconfdir}/default/edgesync"
# A static program, without symbols. Its linker is not that of the layer, so it has another hash style.
INSANE_SKIP:${PN} = "already-stripped ldflags"
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
