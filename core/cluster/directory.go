package cluster

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// Directory is the directory of a cluster on this machine, with its sockets, token and logs. Only its user has access.
type Directory struct {
	Path string
	// Above is a directory above Path that this user trusts anyway, with all directories above it, such as $HOME. If it
	// is "", Check checks each directory up to the root.
	Above string
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

// longestSocket is the longest path of a unix socket that Linux accepts.
const longestSocket = 107

// DirectoryOf returns the directory of a cluster, which need not exist. dir is the parent of all clusters' directories,
// by default $XDG_RUNTIME_DIR/pathways or else ~/.pathways; name is the cluster's name.
//
// Errors: INVALID_ARGUMENT for an invalid name or a path that is too long for sockets, FAILED_PRECONDITION if no
// variable names the default.
func DirectoryOf(dir, name string, lookup func(variable string) (string, bool)) (Directory, error) {
	if !clusterName.MatchString(name) {
		return Directory{}, status.New(status.InvalidArgument,
			"--cluster is %q; expected up to 32 letters, digits, dots, dashes", name)
	}
	var d Directory
	if dir == "" {
		run, _ := lookup("XDG_RUNTIME_DIR")
		home, _ := lookup("HOME")
		switch {
		case run != "":
			d.Above, dir = run, filepath.Join(run, "pathways")
		case home != "":
			d.Above, dir = home, filepath.Join(home, ".pathways")
		default:
			return Directory{}, status.New(status.FailedPrecondition, "neither XDG_RUNTIME_DIR nor HOME is set; pass --dir")
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Directory{}, system.Error(err, "the directory %s has no absolute path", dir)
	}
	if d.Above != "" {
		d.Above = filepath.Dir(dir)
	}
	d.Path = filepath.Join(dir, name)
	if len(filepath.Join(d.Path, "worker-0000.sock")) > longestSocket {
		return Directory{}, status.New(status.InvalidArgument,
			"the path %s is too long for a unix socket; pass a shorter --dir", d.Path)
	}
	return d, nil
}

// Make makes the directory and its parents, and checks it.
//
// Errors: those of Check; RESOURCE_EXHAUSTED if the disk is full.
func (d Directory) Make() error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return system.Error(err, "cannot make the cluster's directory")
	}
	return d.Check()
}

// Check returns an error if another user could add or replace files in the directory, and so take over the sockets, the
// token and the list of processes in it.
//
// Errors: PERMISSION_DENIED, which names the directory that is not safe; NOT_FOUND.
func (d Directory) Check() error {
	return d.folder().check()
}

func (d Directory) folder() folder {
	return folder{d.Path, d.Above, "the cluster's directory", "--dir"}
}

// folder is a directory whose files only this user may add or replace.
type folder struct {
	path  string
	above string // a directory above it that is not checked, nor what is above that; "" means that all are
	what  string // for people
	flag  string // that names another one
}

// keepCache makes the directory of compiled programs, checks it, since what is in it is loaded as code, and returns its
// path without symbolic links.
//
// Errors: those of Directory.Make.
func keepCache(path string) (string, error) {
	err := os.MkdirAll(path, 0o700)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", system.Error(err, "cannot make the cache of compiled programs; name another with --cache")
	}
	return path, folder{path, "", "the cache of compiled programs", "--cache"}.check()
}

// check implements Directory.Check.
func (d folder) check() error {
	info, err := os.Lstat(d.path)
	if err != nil {
		return system.Error(err, "cannot read %s", d.what)
	}
	switch owner, _ := ownerOf(info); {
	case !info.IsDir():
		return status.New(status.FailedPrecondition, "%s %s is not a directory; remove it, or name another with %s", d.what,
			d.path, d.flag)
	case owner != os.Geteuid():
		return status.New(status.PermissionDenied, "%s %s belongs to user %d, and this is user %d; name another with %s",
			d.what, d.path, owner, os.Geteuid(), d.flag)
	case openToOthers(info):
		return status.New(status.PermissionDenied,
			"other users can write to %s %s (mode %#o); `chmod 700` it, or name another with %s", d.what, d.path,
			info.Mode().Perm(), d.flag)
	}
	return d.checkAbove(filepath.Dir(d.path))
}

// checkAbove checks that only this user and root can replace a directory: no other user may be able to change one of
// its parents, or a symbolic link on the way.
func (d folder) checkAbove(path string) error {
	for ; path != d.above; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil {
			return system.Error(err, "cannot read a directory above %s", d.path)
		}
		link := info.Mode().Type() == fs.ModeSymlink
		if owner, _ := ownerOf(info); owner != os.Geteuid() && owner != 0 && !isUnmapped(owner) {
			return status.New(status.PermissionDenied,
				"%s belongs to user %d, who could replace %s %s; name another with %s", path, owner, d.what, d.path, d.flag)
		}
		// In a sticky directory, such as /tmp, users can replace only their own files.
		if !link && openToOthers(info) && info.Mode()&fs.ModeSticky == 0 {
			return status.New(status.PermissionDenied, "other users can write to %s (mode %#o) and so replace %s %s; "+
				"`chmod go-w` it, or name another with %s", path, info.Mode().Perm(), d.what, d.path, d.flag)
		}
		if link {
			to, err := os.Readlink(path)
			if err != nil {
				return system.Error(err, "cannot follow a link above %s", d.path)
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(path), to)
			}
			if err := d.checkAbove(to); err != nil { // terminates: MkdirAll has followed the same links
				return err
			}
		}
		if path == "/" {
			break
		}
	}
	return nil
}

// ownerOf returns the user and the group of a file.
func ownerOf(info fs.FileInfo) (user, group int) {
	s := info.Sys().(*syscall.Stat_t)
	return int(s.Uid), int(s.Gid)
}

// isUnmapped reports whether a user has no number in this process's user namespace, as root in many containers. The
// owner of such a user's files is unknown.
func isUnmapped(user int) bool {
	const (
		overflow = 65534        // the number that stands for all users without one
		all      = "4294967295" // the length of a map that includes every user
	)
	b, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(b))
	return user == overflow && err == nil && len(fields) >= 3 && fields[2] != all
}

// openToOthers reports whether users other than the owner may write. A group with the same number as the owner is the
// owner's own group, as on most systems.
func openToOthers(info fs.FileInfo) bool {
	others := fs.FileMode(0o022)
	if user, group := ownerOf(info); user == group {
		others = 0o002
	}
	return info.Mode().Perm()&others != 0
}

// Socket is the name of the controller's unix socket in a cluster's directory.
const Socket = "controller.sock"

// advise adds what to do to the error of a process that could not connect to the controller at an address: in a cluster
// of this machine that has ended, also what the process may do otherwise. It returns other errors unchanged.
func advise(address string, err error, otherwise string) error {
	var dialed *net.OpError
	if status.CodeOf(err) != status.Unavailable || !errors.As(err, &dialed) || dialed.Op != "dial" ||
		errors.Is(err, fs.ErrPermission) {
		return err
	}
	path, isUnix := strings.CutPrefix(address, "unix:")
	dir := filepath.Dir(path)
	all, name := filepath.Dir(dir), filepath.Base(dir)
	switch {
	case isUnix && filepath.Base(path) == Socket && all != "/" && clusterName.MatchString(name):
		err = status.New(status.Unavailable, "%w; no controller runs there now. Unless its supervisor "+
			"is about to start it again, start the cluster with `pathways up --dir %s --cluster %s` and the options it had, "+
			"or with the same `pathways controller` if that had started it%s", err, all, name, otherwise)
	case isUnix, errors.Is(err, syscall.ECONNREFUSED):
		err = status.New(status.Unavailable, "%w; no controller listens there: "+
			"start it with `pathways controller` if it has ended, or compare the address with its --listen", err)
	default:
		err = status.New(status.Unavailable, "%w; "+
			"check that the address is the controller's, that it runs, and that no firewall is between", err)
	}
	return err
}

// directoryOf returns the directory that a script's environment names, or "" if there is none.
func directoryOf(lookup func(variable string) (string, bool)) string {
	dir, _ := lookup("PATHWAYS_DIR")
	name, _ := lookup("PATHWAYS_CLUSTER")
	d, err := DirectoryOf(dir, cmp.Or(name, "default"), lookup)
	if err != nil {
		return "" // it has nothing that a script needs
	}
	return d.Path
}
