#!/bin/sh
# Installs the files of this tarball: sh install.sh [--root DIR]. It keeps an existing
# /etc/cay/cay.yaml, and starts nothing. "sh install.sh --remove" removes the files, except
# /etc/cay and /var/lib/cay.
set -eu
cd "$(dirname "$0")"
root= remove=
while [ $# -gt 0 ]; do
    case "$1" in
    --root) root=$2; shift 2 ;;
    --remove) remove=1; shift ;;
    *) echo "usage: install.sh [--root DIR] [--remove]" >&2; exit 2 ;;
    esac
done
if [ -n "$remove" ]; then
    find usr -type f | while read -r f; do rm -f "$root/$f"; done
    # Directories that other programs use, too, stay unless they are empty.
    for dir in doc/cay fish/vendor_completions.d fish; do rmdir "$root/usr/share/$dir" 2>/dev/null || true; done
    exit 0
fi
# The program is replaced as a whole, also while it runs.
find usr -type f | while read -r f; do
    mode=0644
    if [ -x "$f" ]; then mode=0755; fi
    install -D -m "$mode" "$f" "$root/$f.new"
    mv -f "$root/$f.new" "$root/$f"
done
if [ ! -e "$root/etc/cay/cay.yaml" ]; then install -D -m 0644 etc/cay/cay.yaml "$root/etc/cay/cay.yaml"; fi
echo "installed; next: systemctl daemon-reload && systemctl enable --now cay"
