package agent

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cayhq/cay"
)

// account is a user as commands and files need it.
type account struct {
	name   string // as in passwd, or the number
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary
	home   string
	shell  string
}

// users resolves names by the machine's /etc/passwd and /etc/group, and by nothing else:
// a process that can write these files is root in the machine anyway. The parser is not
// that of github.com/moby/sys/user, which reads a uid that is no number as 0, so that a
// broken line makes its user root; fails for all users on a line above 64 KiB; refuses ids
// above 1<<31; and takes the first line that matches a number, also before a name.
type users struct {
	root string

	mu     sync.Mutex // guards what follows
	stamps [2]stamp   // of the files when cache was filled
	cache  map[string]*account
}

// stamp tells versions of a file apart.
type stamp struct {
	inode uint64
	size  int64
	mtime int64 // ns
}

// maxAccounts bounds the cache; a machine has few users that matter.
const maxAccounts = 64

// lookup resolves "name", "uid", "name:group", "uid:gid". Errors: invalid.
func (u *users) lookup(spec string) (*account, error) {
	passwd, group := filepath.Join(u.root, "etc/passwd"), filepath.Join(u.root, "etc/group")
	stamps := [2]stamp{stampOf(passwd), stampOf(group)}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cache == nil || stamps != u.stamps || len(u.cache) >= maxAccounts {
		u.cache, u.stamps = map[string]*account{}, stamps
	}
	if a := u.cache[spec]; a != nil {
		return a, nil
	}
	a, err := resolve(spec, passwd, group)
	if err == nil {
		u.cache[spec] = a
	}
	return a, err
}

func resolve(spec, passwd, group string) (*account, error) {
	user, grp, hasGroup := strings.Cut(spec, ":")
	if user == "" || hasGroup && grp == "" || len(spec) > 256 || strings.ContainsAny(spec, "\x00\n/") {
		return nil, cay.Errorf(cay.Invalid, "user %q is neither a name nor uid[:gid]", spec)
	}
	a, err := findUser(passwd, user)
	if err != nil {
		return nil, err
	}
	if a == nil {
		uid, err := strconv.ParseUint(user, 10, 32)
		switch {
		case err == nil && uid < 1<<32-1:
			a = &account{name: user, uid: uint32(uid), home: "/", shell: "/bin/sh"}
		case user == "root":
			// An image without passwd still has its root.
			a = &account{name: "root", home: "/root", shell: "/bin/sh"}
		default:
			return nil, cay.Errorf(cay.Invalid, "user %q does not exist in the sandbox", user).
				WithHint("name one of /etc/passwd, or give a numeric id")
		}
	}
	gid, found := uint32(0), !hasGroup
	if n, err := strconv.ParseUint(grp, 10, 32); err == nil && n < 1<<32-1 {
		gid, found = uint32(n), true
	}
	var groups []uint32
	err = eachLine(group, func(f []string) bool {
		g, ok := parseGroup(f)
		if !ok {
			return true
		}
		if hasGroup && g.name == grp {
			gid, found = g.gid, true
		}
		if slices.Contains(g.members, a.name) && len(groups) < maxGroups {
			groups = append(groups, g.gid)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, cay.Errorf(cay.Invalid, "group %q does not exist in the sandbox", grp)
	}
	if hasGroup {
		a.gid = gid
	}
	if !slices.Contains(groups, a.gid) {
		groups = append(groups, a.gid)
	}
	a.groups = groups
	return a, nil
}

// maxGroups is less than the kernel's NGROUPS_MAX, and more than any real user has.
const maxGroups = 1024

func findUser(passwd, user string) (found *account, err error) {
	err = eachLine(passwd, func(f []string) bool {
		a, ok := parsePasswd(f)
		if !ok {
			return true
		}
		if a.name == user {
			found = a
			return false
		}
		// A number means a name first, as for chown(1), and otherwise an id.
		if found == nil && strconv.FormatUint(uint64(a.uid), 10) == user {
			found = a
		}
		return true
	})
	return found, err
}

// parsePasswd reads name:password:uid:gid:gecos:home:shell.
func parsePasswd(f []string) (*account, bool) {
	if len(f) != 7 || f[0] == "" {
		return nil, false
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil {
		return nil, false
	}
	a := &account{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
	set(&a.home, "/")
	set(&a.shell, "/bin/sh")
	return a, true
}

type groupLine struct {
	name    string
	gid     uint32
	members []string
}

// parseGroup reads name:password:gid:member,member.
func parseGroup(f []string) (groupLine, bool) {
	if len(f) != 4 || f[0] == "" {
		return groupLine{}, false
	}
	gid, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil {
		return groupLine{}, false
	}
	return groupLine{name: f[0], gid: uint32(gid), members: strings.Split(f[3], ",")}, true
}

// maxUserFile bounds how much of passwd or group is read.
const maxUserFile = 4 << 20

// eachLine calls line with the fields of each line of a file until line returns false. A
// missing file has no lines; lines over 64 KiB and comments are skipped.
func eachLine(path string, line func(fields []string) bool) error {
	f, _, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fileError("open", path, err)
	}
	defer f.Close()
	return scanLines(io.LimitReader(f, maxUserFile), line)
}

func scanLines(r io.Reader, line func(fields []string) bool) error {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		text, long, err := b.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cay.Errorf(cay.Internal, "read user database: %w", err)
		}
		tooLong := long
		for long && err == nil {
			_, long, err = b.ReadLine()
		}
		if s := string(text); !tooLong && s != "" && s[0] != '#' && !line(strings.Split(s, ":")) {
			return nil
		}
	}
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{inode: inodeOf(info), size: info.Size(), mtime: info.ModTime().UnixNano()}
}
