#!/bin/sh
set -e

# same_unit: the running daemon has the rights that the unit of this version gives.
same_unit() {
    cmp -s /run/cay.service.before /usr/lib/systemd/system/cay.service
}

# answers: a daemon runs that can hand over, and no policy of the administrator decides about
# restarts.
answers() {
    [ ! -x /usr/sbin/policy-rc.d ] && [ -S /var/lib/cay/control.sock ] && systemctl is-active --quiet cay.service
}

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
        if [ -n "$2" ] && same_unit && answers; then
            # The new program takes over the sockets: no request is refused, and sandboxes go on.
            CAY_CONFIG=/etc/cay/cay.yaml /usr/bin/cay upgrade ||
                echo "cay: the new version did not take over; see journalctl -u cay, then: systemctl restart cay" >&2
        elif [ -x /usr/bin/deb-systemd-invoke ]; then
            # A restart leaves sandboxes running; the new daemon takes them over.
            if [ -n "$2" ]; then action=try-restart; else action=start; fi
            deb-systemd-invoke "$action" cay.service || true
        fi
    fi
    rm -f /run/cay.service.before
    ;;
esac
