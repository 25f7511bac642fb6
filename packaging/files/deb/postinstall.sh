#!/bin/sh
set -e
case "$1" in
configure)
    # /etc/default/cay may hold keys of providers.
    if [ -e /etc/default/cay ]; then chmod go-rwx /etc/default/cay; fi
    if [ -x /usr/bin/deb-systemd-helper ]; then
        deb-systemd-helper unmask cay.service >/dev/null || true
        if deb-systemd-helper --quiet was-enabled cay.service; then
            deb-systemd-helper enable cay.service >/dev/null || true
        else
            deb-systemd-helper update-state cay.service >/dev/null || true
        fi
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        # A restart leaves sandboxes running; the new daemon takes them over.
        if [ -n "$2" ]; then action=try-restart; else action=start; fi
        if [ -x /usr/bin/deb-systemd-invoke ]; then
            deb-systemd-invoke "$action" cay.service || true
        fi
    fi
    ;;
esac
