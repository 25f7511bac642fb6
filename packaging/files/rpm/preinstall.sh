# The script after the installation compares the unit of the earlier version with the new one.
if [ "$1" -gt 1 ] && [ -e /usr/lib/systemd/system/cay.service ]; then
    cp /usr/lib/systemd/system/cay.service /run/cay.service.before || :
fi
