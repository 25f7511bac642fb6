if [ -e /etc/default/cay ]; then chmod go-rwx /etc/default/cay; fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload >/dev/null 2>&1 || :
    if [ "$1" -gt 1 ]; then
        # A restart leaves sandboxes running; the new daemon takes them over.
        systemctl try-restart cay.service >/dev/null 2>&1 || :
    else
        systemctl preset cay.service >/dev/null 2>&1 || :
    fi
fi
