#!/bin/sh
# Finishes the default image. $1 is its root; mmdebstrap runs this before it
# packs the tree.
set -eu
root=$1
user=vercel-sandbox

chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash "$user"
install -d -o 1000 -g 1000 "$root/vercel/sandbox" "$root/workspace"
install -d "$root/vercel/bin" "$root/vercel/runtimes"

# sudo: no password, the caller's environment and PATH, the target's home. Users
# added later have no rights.
cat >"$root/etc/sudoers.d/$user" <<EOF
Defaults !requiretty, !env_reset, !secure_path, always_set_home
$user ALL=(ALL:ALL) NOPASSWD: ALL
EOF
chmod 0440 "$root/etc/sudoers.d/$user"

# "pip install" and "npm install -g" just work, as the user and with sudo.
chown -R 1000:1000 "$root/usr/local"
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
cat >"$root/etc/pip.conf" <<EOF
[global]
break-system-packages = true
disable-pip-version-check = true
root-user-action = ignore
EOF

# A shell that looks at home; login shells find the runtimes, too: Debian's
# profile would set a PATH of its own.
cat >"$root/etc/profile" <<'EOF'
if [ -n "${BASH-}" ] && [ -f /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi
for f in /etc/profile.d/*.sh; do if [ -r "$f" ]; then . "$f"; fi; done
unset f
EOF

# Installing packages inside must never wait for an answer.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
cat >"$root/etc/apt/apt.conf.d/90cay" <<EOF
Dpkg::Options { "--force-confdef"; "--force-confold"; };
EOF

# Chromium and its kin put a dummy of an encrypted hello into every connection,
# which no list of allowed names can tell from a real one; see docs/network.md.
for dir in chromium opt/chrome opt/chrome_for_testing; do
    install -d "$root/etc/$dir/policies/managed"
    echo '{"EncryptedClientHelloEnabled": false}' >"$root/etc/$dir/policies/managed/cay.json"
done

# Without manuals their directories go, too, and then packages that offer
# alternatives of a manual (OpenJDK) fail to install.
for n in 1 2 3 4 5 6 7 8; do mkdir -p "$root/usr/share/man/man$n"; done

# What came from this machine, or belongs to one machine only.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/var/lib/dbus/machine-id"
: >"$root/etc/machine-id"
: >"$root/etc/resolv.conf"
find "$root/var/log" -type f -delete
rm -rf "$root"/var/cache/debconf/*-old "$root"/var/cache/ldconfig "$root"/var/lib/dpkg/*-old
rm -f "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow-
