if [ "$1" -eq 0 ]; then
    if [ -d /run/systemd/system ]; then systemctl --no-reload disable --now cay.service >/dev/null 2>&1 || :; fi
    # Nobody could take over sandboxes that outlive their program.
    CAY_CONFIG=/etc/cay/cay.yaml /usr/bin/cay reap || :
fi
