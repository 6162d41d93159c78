package cluster

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

// stranger is a user that this test is not.
const stranger = 65534

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act for another user")
	}
}

// asStranger calls do with files and sockets made for another user.
func asStranger(t *testing.T, do func()) {
	t.Helper()
	needsRoot(t)
	runtime.LockOSThread() // the file system's user is a thread's own
	defer runtime.UnlockOSThread()
	set := func(user uintptr) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, user, 0, 0) // it returns the user before
	}
	set(stranger)
	defer set(0)
	do()
}

// All processes that keep a directory's token get the same one, which is for this user alone.
func TestProcessesOfADirectoryKeepOneToken(t *testing.T) {
	d := Directory{Path: filepath.Join(t.TempDir(), "dir", "default")}
	const processes = 8
	var got [processes]string
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			var err error
			if got[i], err = d.KeepToken(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, token := range got {
		if token != got[0] || len(token) != 2*tokenBytes {
			t.Errorf("tokens %q and %q", token, got[0])
		}
	}
	for path, mode := range map[string]os.FileMode{d.Path: os.ModeDir | 0o700, d.TokenPath(): 0o600} {
		statustest.Equal(t, statustest.Value(os.Stat(path)).OK(t).Mode(), mode, "%s has mode", path)
	}
	statustest.Equal(t, len(statustest.Value(os.ReadDir(d.Path)).OK(t)), 1, "files beside the token")
	statustest.Equal(t, statustest.Value(ReadToken(d.TokenPath())).OK(t), got[0], "the token that was read")
}

// A token is never kept where another user could read it, or put another in its place.
func TestKeepTokenRefusesUnsafePlaces(t *testing.T) {
	for _, c := range []struct {
		name    string
		root    bool // acts for another user
		prepare func(t *testing.T, base string)
		says    string // besides the path of what is unsafe, below base
		what    string
	}{
		{"readable token", false, func(t *testing.T, base string) {
			write(t, filepath.Join(base, "default", TokenFile), 0o666)
		}, "remove it", "default/token"},
		{"token that is a link", false, func(t *testing.T, base string) {
			write(t, filepath.Join(base, "elsewhere"), 0o600)
			linkTo(t, filepath.Join(base, "elsewhere"), filepath.Join(base, "default", TokenFile))
		}, "cannot be read", "default/token"},
		{"writable directory", false, func(t *testing.T, base string) { makeDir(t, filepath.Join(base, "default"), 0o777) },
			"chmod 700", "default"},
		{"writable directory above", false, func(t *testing.T, base string) {
			makeDir(t, filepath.Join(base, "default"), 0o700)
			chmod(t, base, 0o777)
		}, "chmod go-w", ""},
		{"file", false, func(t *testing.T, base string) { write(t, filepath.Join(base, "default"), 0o600) }, "default",
			"default"},
		{"another's directory", true, func(t *testing.T, base string) {
			makeDir(t, filepath.Join(base, "default"), 0o700)
			chown(t, filepath.Join(base, "default"))
		}, "belongs to user 65534", "default"},
		{"another's directory above", true, func(t *testing.T, base string) { chown(t, base) }, "belongs to user 65534", ""},
		{"another's token", true, func(t *testing.T, base string) {
			write(t, filepath.Join(base, "default", TokenFile), 0o600)
			chown(t, filepath.Join(base, "default", TokenFile))
		}, "of user 65534", "default/token"},
		{"another's link", true, func(t *testing.T, base string) {
			makeDir(t, filepath.Join(base, "real"), 0o700)
			chmod(t, base, 0o777|os.ModeSticky)
			linkTo(t, filepath.Join(base, "real"), filepath.Join(base, "clusters"))
			statustest.OK(t, os.Lchown(filepath.Join(base, "clusters"), stranger, stranger))
		}, "belongs to user 65534", "clusters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needsRoot(t)
			}
			base := t.TempDir()
			c.prepare(t, base)
			path := filepath.Join(base, "default")
			if c.what == "clusters" {
				path = filepath.Join(base, "clusters", "default")
			}
			token, err := Directory{Path: path}.KeepToken()
			code := status.CodeOf(err)
			if token != "" || code != status.PermissionDenied && code != status.FailedPrecondition {
				t.Fatalf("token %q, %v (%v)", token, err, code)
			}
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), filepath.Join(base, c.what)) {
				t.Errorf("%q does not say %q of %s", err, c.says, c.what)
			}
		})
	}
}

// What the user relies on anyway is not checked, nor a sticky directory, nor a group of the user alone.
func TestKeepTokenTakesUsualPlaces(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(base string) Directory
	}{
		{"home", func(base string) Directory {
			chmod(t, base, 0o777)
			return Directory{Path: filepath.Join(base, ".pathways", "default"), Above: base}
		}},
		{"sticky", func(base string) Directory {
			chmod(t, base, 0o777|os.ModeSticky)
			return Directory{Path: filepath.Join(base, "x", "default")}
		}},
		{"readable", func(base string) Directory {
			makeDir(t, filepath.Join(base, "default"), 0o755)
			return Directory{Path: filepath.Join(base, "default")}
		}},
		{"own link", func(base string) Directory {
			makeDir(t, filepath.Join(base, "real"), 0o700)
			linkTo(t, "real", filepath.Join(base, "link"))
			return Directory{Path: filepath.Join(base, "link", "default")}
		}},
	} {
		if token, err := c.prepare(t.TempDir()).KeepToken(); token == "" || err != nil {
			t.Errorf("%s: %q, %v", c.name, token, err)
		}
	}
}

// The error of an empty file, such as a full disk leaves, says what to do: a controller makes a token only where it
// keeps one itself.
func TestEmptyTokenFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, TokenFile)
	statustest.OK(t, os.WriteFile(path, []byte("\n"), 0o600))
	_, named := ReadToken(path)
	_, kept := Directory{Path: dir}.KeepToken()
	_, found := findToken("unix:"+filepath.Join(dir, Socket), "")
	for _, c := range []struct {
		name string
		err  error
		says string
	}{
		{"named", named, "write into it the token that all processes of the cluster share"},
		{"kept", kept, "start the controller again, which makes one"},
		{"found", found, "start the controller again, which makes one"},
	} {
		if status.CodeOf(c.err) != status.InvalidArgument || !strings.Contains(c.err.Error(), path+" is empty; write") ||
			!strings.HasSuffix(c.err.Error(), c.says) {
			t.Errorf("%s: %v, want it to end with %q", c.name, c.err, c.says)
		}
	}
}

// A token that was not named is shown only to a process of this user or of root.
func TestTokenIsShownOnlyToItsUser(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, TokenFile), 0o600)
	listen := func(network, at string) string {
		l := statustest.Value(net.Listen(network, at)).OK(t)
		t.Cleanup(func() { l.Close() })
		return network + ":" + l.Addr().String()
	}
	find := func(address string) string {
		token, err := findToken(address, dir)
		statustest.Check(t, err)
		return token
	}
	sockets := t.TempDir()
	mine := listen("tcp", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(mine, "tcp:"))
	for _, address := range []string{mine, "tcp:localhost:" + port, listen("unix", filepath.Join(sockets, "s"))} {
		if find(address) != secretText {
			t.Errorf("no token for %s, where this user listens", address)
		}
	}
	for _, address := range []string{"tcp:127.0.0.1:1", "tcp:127.0.0.1:http", "tcp:head:" + port, "unix:" +
		filepath.Join(sockets, "none")} {
		if token := find(address); token != "" {
			t.Errorf("a token for %s, where no process of this machine listens", address)
		}
	}
	if token, err := findToken(mine, ""); token != "" || err != nil {
		t.Errorf("without a directory: %q, %v", token, err)
	}
	write(t, filepath.Join(sockets, TokenFile), 0o600)
	if token, err := findToken("unix:"+filepath.Join(sockets, "s"), ""); token != secretText || err != nil {
		t.Errorf("beside the socket: %q, %v", token, err)
	}
	t.Run("another user listens", func(t *testing.T) {
		var theirs, both string
		asStranger(t, func() {
			theirs = listen("tcp", "127.0.0.1:0")
			both = listen("tcp", "127.0.0.2:"+port) // where a name of this machine may lead to
		})
		for _, address := range []string{theirs, both, mine} {
			if token := find(address); token != "" {
				t.Errorf("the token is shown at %s, where another user listens", address)
			}
		}
	})
}

// A controller may make its token, or begin to listen, just after the token was looked for.
func TestShowLooksAgainWhereItIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := statustest.Value(net.Listen("tcp", "127.0.0.1:0")).OK(t)
	defer l.Close()
	for _, c := range []struct {
		name  string
		made  bool // by the time of the first call
		shown []string
	}{
		{"no token there", false, []string{""}},
		{"a token made meanwhile", true, []string{"", secretText}},
		{"the token that is there is wrong", true, []string{secretText}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var shown []string
			err := Secret{Directory: dir}.show("tcp:"+l.Addr().String(), func(s Secret) error {
				shown = append(shown, s.Token)
				if c.made {
					write(t, filepath.Join(dir, TokenFile), 0o600)
				}
				return status.New(status.Unauthenticated, "the token is wrong")
			})
			if !slices.Equal(shown, c.shown) || status.CodeOf(err) != status.Unauthenticated {
				t.Errorf("showed %q, want %q; %v", shown, c.shown, err)
			}
		})
	}
}

const secretText = "open sesame"

func write(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	makeDir(t, filepath.Dir(path), 0o700)
	statustest.OK(t, os.WriteFile(path, []byte(secretText+"\n"), mode))
	chmod(t, path, mode)
}

func makeDir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if _, err := os.Stat(path); err == nil {
		return
	}
	statustest.OK(t, os.MkdirAll(path, mode))
	chmod(t, path, mode)
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	statustest.OK(t, os.Chmod(path, mode))
}

func chown(t *testing.T, path string) {
	t.Helper()
	statustest.OK(t, os.Chown(path, stranger, stranger))
}

func linkTo(t *testing.T, to, path string) {
	t.Helper()
	makeDir(t, filepath.Dir(path), 0o700)
	statustest.OK(t, os.Symlink(to, path))
}
