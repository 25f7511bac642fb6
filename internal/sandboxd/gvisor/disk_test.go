package gvisor_test

import "testing"

// Files written to the disk are there in the next machine, and in the machine after that.
func TestSaveDisk(t *testing.T) {
	f := openForkable(t, nil)
	const write = `set -e
umount /tmp || true; echo kept > /tmp/kept # below what gVisor mounts there, if the guest has left that
cd /vercel/sandbox
echo x > m; chown 1234:4321 m; chmod 6751 m; touch -d "2020-01-02 03:04:05" m
ln m hard; ln -s "a b/ü" sym; mkfifo fifo; mknod null c 1 3
truncate -s 3G sparse; printf end | dd of=sparse bs=1 seek=2000000000 conv=notrunc status=none
python3 - <<P
import os
os.setxattr("m", "user.text", b"v")
os.setxattr("m", "trusted.x", b"a\\x00b")
open(b"bad\\xff\\xfename", "w").write("1"); open("n"*250, "w").write("1")
os.makedirs("/".join(["d"*60]*20))
P
rm /etc/issue; rm -r /usr/share/doc; mkdir /usr/share/doc; echo new > /usr/share/doc/only
mv /etc/apt /etc/apt2`
	const look = `umount /tmp 2>/dev/null
cd /vercel/sandbox
cat /tmp/kept; stat -c '%a %U' /tmp
stat -c '%n %a %u:%g %h %s %F %t' m hard fifo null sparse sym; stat -c %Y m; readlink sym
tail -c +2000000001 sparse | head -c 3; echo
python3 - <<P
import os
print(sorted((k, os.getxattr("m", k)) for k in os.listxattr("m")), sorted(os.listdir(b".")))
print(sum(len(d) for _, d, _ in os.walk(".")))
P
ls /etc/issue; ls -A /usr/share/doc; ls /etc/apt2; ls -d /etc/apt`
	if out, code := f.root(t, write); code != 0 {
		t.Fatal(out)
	}
	want, _ := f.root(t, look)
	for range 2 {
		dir := f.saveDisk(t)
		in, err := f.runtime.StartFrom(t.Context(), f.another(), dir)
		if err != nil {
			t.Fatal(err)
		}
		f.box = f.own(t, in)
		if got, _ := f.root(t, look); got != want {
			t.Errorf("the next machine has\n%s\nwant\n%s", got, want)
		}
	}
}
