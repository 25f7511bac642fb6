#!/bin/sh
set -e
# postinst compares the unit of the earlier version with the new one.
if [ "$1" = upgrade ] && [ -e /usr/lib/systemd/system/cay.service ]; then
    cp /usr/lib/systemd/system/cay.service /run/cay.service.before
fi
