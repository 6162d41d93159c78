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

// Directory is where a cluster of this machine keeps its sockets, its token and its logs, for its user alone.
type Directory struct {
	Path string
	// Above is a directory above Path that this user relies on anyway, with all that is above it, such as $HOME. ""
	// is none: then each directory up to the root is checked.
	Above string
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

// longestSocket is the longest path of a unix socket that Linux takes.
const longestSocket = 107

// DirectoryOf names the directory of a cluster, which need not exist: dir is where all clusters have theirs, by
// default $XDG_RUNTIME_DIR/pathways or else ~/.pathways, and name that of the cluster.
//
// Errors: INVALID_ARGUMENT for a name that is none or a path that is too long for sockets, FAILED_PRECONDITION where
// no variable names the default.
func DirectoryOf(dir, name string, lookup func(variable string) (string, bool)) (Directory, error) {
	if !clusterName.MatchString(name) {
		return Directory{}, status.New(status.InvalidArgument, "--cluster is %q; expected up to 32 letters, digits, dots, dashes", name)
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
			return Directory{}, status.New(status.FailedPrecondition, "neither XDG_RUNTIME_DIR nor HOME is set; say --dir")
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
		return Directory{}, status.New(status.InvalidArgument, "the directory %s is too long for the name of a unix socket; say a shorter --dir", d.Path)
	}
	return d, nil
}

// Make makes the directory, with those above it, and checks it.
//
// Errors: those of Check; RESOURCE_EXHAUSTED for a full disk.
func (d Directory) Make() error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return system.Error(err, "cannot make the cluster's directory")
	}
	return d.Check()
}

// Check refuses a directory in which another user could put or replace files: who holds it holds the sockets, the
// token and the list of processes in it.
//
// Errors: PERMISSION_DENIED with the directory that is not safe, NOT_FOUND.
func (d Directory) Check() error {
	info, err := os.Lstat(d.Path)
	if err != nil {
		return system.Error(err, "cannot look at the cluster's directory")
	}
	switch owner, _ := ownerOf(info); {
	case !info.IsDir():
		return status.New(status.FailedPrecondition, "the cluster's directory %s is no directory; remove it or name another by --dir", d.Path)
	case owner != os.Geteuid():
		return status.New(status.PermissionDenied, "the cluster's directory %s belongs to user %d, and this is user %d; name another by --dir", d.Path, owner, os.Geteuid())
	case openToOthers(info):
		return status.New(status.PermissionDenied, "other users can write to the cluster's directory %s (mode %#o); `chmod 700` it, or name another by --dir", d.Path, info.Mode().Perm())
	}
	return d.checkAbove(filepath.Dir(d.Path))
}

// checkAbove checks that nobody but this user and root can replace a directory: none that holds it, and no symbolic
// link on the way, may be another user's to change.
func (d Directory) checkAbove(path string) error {
	for ; path != d.Above; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if err != nil {
			return system.Error(err, "cannot look at a directory above %s", d.Path)
		}
		link := info.Mode().Type() == fs.ModeSymlink
		if owner, _ := ownerOf(info); owner != os.Geteuid() && owner != 0 && !isUnmapped(owner) {
			return status.New(status.PermissionDenied, "%s belongs to user %d, who could replace the cluster's directory %s; name another by --dir", path, owner, d.Path)
		}
		// In a sticky directory, such as /tmp, users replace nothing but their own.
		if !link && openToOthers(info) && info.Mode()&fs.ModeSticky == 0 {
			return status.New(status.PermissionDenied, "other users can write to %s (mode %#o) and so replace the cluster's directory %s; `chmod go-w` it, or name another by --dir", path, info.Mode().Perm(), d.Path)
		}
		if link {
			to, err := os.Readlink(path)
			if err != nil {
				return system.Error(err, "cannot follow a link above %s", d.Path)
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(path), to)
			}
			if err := d.checkAbove(to); err != nil { // it ends: MkdirAll has followed the same links
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

// isUnmapped reports whether a user has no number in this process's user namespace, as root has none in many
// containers. Its files say nothing about who it is.
func isUnmapped(user int) bool {
	const (
		overflow = 65534        // the number that stands for all without one
		all      = "4294967295" // the length of a map that leaves no user out
	)
	b, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(b))
	return user == overflow && err == nil && len(fields) >= 3 && fields[2] != all
}

// openToOthers reports whether users other than the owner may write. A group with the number of its user is that
// user's own, as most systems make them.
func openToOthers(info fs.FileInfo) bool {
	others := fs.FileMode(0o022)
	if user, group := ownerOf(info); user == group {
		others = 0o002
	}
	return info.Mode().Perm()&others != 0
}

// Socket is the file in a cluster's directory at which its controller listens.
const Socket = "controller.sock"

// advise adds what to do to the error of a process that could not connect to the controller at an address. Other errors
// stay as they are.
func advise(address string, err error) error {
	var dialled *net.OpError
	if status.CodeOf(err) != status.Unavailable || !errors.As(err, &dialled) || dialled.Op != "dial" ||
		errors.Is(err, fs.ErrPermission) {
		return err
	}
	path, isUnix := strings.CutPrefix(address, "unix:")
	dir := filepath.Dir(path)
	all, name := filepath.Dir(dir), filepath.Base(dir)
	switch {
	case isUnix && filepath.Base(path) == Socket && all != "/" && clusterName.MatchString(name):
		err = status.New(status.Unavailable, "%w; no controller runs there: "+
			"start the cluster again by `pathways up --dir %s --cluster %s` and the options it had", err, all, name)
	case isUnix, errors.Is(err, syscall.ECONNREFUSED):
		err = status.New(status.Unavailable, "%w; no controller listens there: "+
			"start it again by `pathways controller` if it has ended, or compare the address with the one it was given", err)
	default:
		err = status.New(status.Unavailable, "%w; "+
			"check that the address is the controller's, that it runs, and that no firewall is between", err)
	}
	return err
}

// directoryOf is the directory that a script's environment names; "" where there is none.
func directoryOf(lookup func(variable string) (string, bool)) string {
	dir, _ := lookup("PATHWAYS_DIR")
	name, _ := lookup("PATHWAYS_CLUSTER")
	d, err := DirectoryOf(dir, cmp.Or(name, "default"), lookup)
	if err != nil {
		return "" // nothing that a script needs is there
	}
	return d.Path
}
