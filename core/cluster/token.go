package cluster

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/transport"
	"github.com/openpathways/pathways/transport/stream"
)

// TokenFile is the name of the token's file in a cluster's directory.
const TokenFile = "token"

// tokenBytes is the number of random bytes of a token: 192 bits, too many to guess.
const tokenBytes = 24

// What to do about an empty token file: one that the user names, and one in a cluster's directory.
const (
	fillNamed = "write into it the token that all processes of the cluster share"
	fillKept  = "write the cluster's token into it, or remove the file and start the controller again, which makes one"
)

// ReadToken reads a token from a file that the user names.
//
// Errors: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT if it is empty.
func ReadToken(path string) (string, error) { return readTokenAt(path, fillNamed) }

func readTokenAt(path, remedy string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", system.Error(err, "the token file cannot be read")
	}
	defer f.Close()
	return readToken(f, remedy)
}

// readToken reads a token from an open file. If that is empty, the error says what to do.
func readToken(f *os.File, remedy string) (string, error) {
	b, err := io.ReadAll(f)
	if err != nil {
		return "", system.Error(err, "the token file cannot be read")
	}
	return tokenIn(b, f.Name(), remedy)
}

// tokenIn returns the token that a file of this path contains.
func tokenIn(text []byte, path, remedy string) (string, error) {
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", status.New(status.InvalidArgument, "the token file %s is empty; %s", path, remedy)
	}
	return token, nil
}

// NewToken returns a random token for a tenant. It cannot be taken for a cluster's own, see transport.IsOwn.
func NewToken() string { return transport.Tenant.String() + "-" + randomToken() }

func randomToken() string {
	var random [tokenBytes]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// RoleToken returns the token of a role, "operator", "worker" or "tenant", of the cluster with this own token.
//
// Errors: INVALID_ARGUMENT for another role, or if the token is that of a role.
func RoleToken(own, role string) (string, error) {
	pass, err := transport.PassNamed(role)
	if err == nil {
		err = transport.IsOwn(own)
	}
	if err != nil {
		return "", err
	}
	return pass.Token(own), nil
}

// TokenPath returns the path of the directory's token.
func (d Directory) TokenPath() string { return filepath.Join(d.Path, TokenFile) }

// KeepToken returns the token in the directory, and makes both if they do not exist. If several processes do so at the
// same time, all get the same token.
//
// Errors: those of Make; PERMISSION_DENIED if others can read the token.
func (d Directory) KeepToken() (string, error) {
	if err := d.Make(); err != nil {
		return "", err
	}
	token, err := d.ownToken()
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	// It is written under another name, so that no process reads half of it, and then linked, which never replaces the
	// token of a process that was faster.
	f, err := os.CreateTemp(d.Path, "."+TokenFile+"-") // mode 0600
	if err != nil {
		return "", system.Error(err, "cannot keep the cluster's token")
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(randomToken() + "\n")
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Link(f.Name(), d.TokenPath())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", system.Error(err, "cannot keep the cluster's token in %s", d.TokenPath())
	}
	return d.ownToken()
}

// ownToken reads the directory's token if only this user has access to it.
func (d Directory) ownToken() (string, error) {
	f, err := os.OpenFile(d.TokenPath(), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", system.Error(err, "the token file cannot be read")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", system.Error(err, "the token file cannot be read")
	}
	if owner, _ := ownerOf(info); !info.Mode().IsRegular() || owner != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return "", status.New(status.PermissionDenied,
			"other users have access to the token file %s (%v, of user %d); remove it, and a new one is made", f.Name(),
			info.Mode(), owner)
	}
	return readToken(f, fillKept)
}

// HoldToken marks the directory's token as required by this process, until the returned file is closed: IsTokenHeld
// reports that, and `pathways down` then keeps the token. It has no effect on a file system without locks.
func (d Directory) HoldToken() (*os.File, error) {
	f, err := os.Open(d.TokenPath())
	if err != nil {
		return nil, system.Error(err, "the token file cannot be read")
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	return f, nil
}

// IsTokenHeld reports whether a process holds the directory's token.
func (d Directory) IsTokenHeld() bool {
	f, err := os.Open(d.TokenPath())
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK
}

// findToken reads the token that a controller at an address keeps on this machine: beside its unix socket, or in dir,
// the directory of this user's cluster. It returns "" if there is none.
//
// The token in dir is shown only to processes of this user and of root: once the controller has ended, any user may
// listen at its port.
//
// Errors: PERMISSION_DENIED if the token is another user's.
func findToken(address, dir string) (string, error) {
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		token, err := readTokenAt(filepath.Join(filepath.Dir(socket), TokenFile), fillKept)
		if status.CodeOf(err) != status.NotFound {
			return token, err
		}
	}
	if dir == "" || !stream.Local(address) || !isTrusted(address) {
		return "", nil
	}
	token, err := readTokenAt(filepath.Join(dir, TokenFile), fillKept)
	if status.CodeOf(err) == status.NotFound { // the controller may not require one
		err = nil
	}
	return token, err
}

// isTrusted reports whether only sockets of this user and of root listen at a local address.
func isTrusted(address string) bool {
	var owners []int
	network, at, _ := strings.Cut(address, ":")
	if network == "unix" {
		info, err := os.Lstat(at)
		if err != nil {
			return false
		}
		owner, _ := ownerOf(info)
		owners = append(owners, owner)
	} else {
		_, port, err := net.SplitHostPort(at)
		number, wrong := strconv.ParseUint(port, 10, 16)
		if err != nil || wrong != nil {
			return false
		}
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			f, err := os.Open(table)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the system has no IPv6, or does not say
			}
			if err != nil {
				return false
			}
			owners = append(owners, listeners(f, uint16(number))...)
			f.Close()
		}
	}
	for _, owner := range owners {
		if owner != os.Geteuid() && owner != 0 {
			return false
		}
	}
	return len(owners) > 0
}

// listeners returns the owners of the sockets that listen at a port, on any address, from one of the kernel's tables
// (/proc/net/tcp), in which listening sockets come first.
func listeners(table io.Reader, port uint16) (owners []int) {
	const (
		local, state, owner = 1, 3, 7 // columns
		listening           = "0A"
	)
	lines := bufio.NewScanner(table)
	lines.Scan() // the column names
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= owner || fields[state] != listening {
			break
		}
		_, hex, _ := strings.Cut(fields[local], ":")
		at, err := strconv.ParseUint(hex, 16, 16)
		user, wrong := strconv.Atoi(fields[owner])
		if err == nil && wrong == nil && uint16(at) == port {
			owners = append(owners, user)
		}
	}
	return owners
}
