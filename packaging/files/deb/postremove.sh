#!/bin/sh
set -e
case "$1" in
remove)
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper mask cay.service >/dev/null || true
    fi
    ;;
purge)
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper purge cay.service >/dev/null || true
        deb-systemd-helper unmask cay.service >/dev/null || true
    fi
    rm -f /etc/default/cay
    # Files that the administrator has added are the administrator's.
    if [ -d /etc/cay ]; then rmdir --ignore-fail-on-non-empty /etc/cay; fi
    # All data goes with the package, unless somebody asked to keep it.
    if [ -e /var/lib/cay/keep ]; then
        echo "cay: the data in /var/lib/cay stays, because of /var/lib/cay/keep"
    else
        rm -rf /var/lib/cay
    fi
    for dir in /sys/fs/cgroup/cay /sys/fs/cgroup/*/cay; do
        if [ -d "$dir" ]; then rmdir "$dir" 2>/dev/null || true; fi
    done
    ;;
esac
if [ -d /run/systemd/system ]; then systemctl --system daemon-reload >/dev/null || true; fi
