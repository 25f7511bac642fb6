#!/bin/sh
set -e
case "$1" in
remove | deconfigure)
    if [ -d /run/systemd/system ] && [ -x /usr/bin/deb-systemd-invoke ]; then
        deb-systemd-invoke stop cay.service || true
    fi
    # Nobody could take over sandboxes that outlive their program. Persistent ones start
    # again from their last save, if cay is installed again.
    CAY_CONFIG=/etc/cay/cay.yaml /usr/bin/cay reap || true
    ;;
esac
