if [ -e /etc/default/cay ]; then chmod go-rwx /etc/default/cay; fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null 2>&1 || :
    if [ "$1" -gt 1 ]; then
        if cmp -s /run/cay.service.before /usr/lib/systemd/system/cay.service && [ -S /var/lib/cay/control.sock ] &&
            systemctl is-active --quiet cay.service; then
            # The new program takes over the sockets: no request is refused, and sandboxes go on.
            CAY_CONFIG=/etc/cay/cay.yaml /usr/bin/cay upgrade ||
                echo "cay: the new version did not take over; see journalctl -u cay, then: systemctl restart cay" >&2
        else
            # A restart leaves sandboxes running; the new daemon takes them over.
            systemctl try-restart cay.service >/dev/null 2>&1 || :
        fi
    else
        systemctl preset cay.service >/dev/null 2>&1 || :
    fi
fi
rm -f /run/cay.service.before
