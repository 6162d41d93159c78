package command

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
)

// place is the directory of a cluster on this machine.
type place struct {
	dir, cluster string
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

// longest path of a unix socket that Linux takes.
const longestSocket = 107

// placeOf finds the directory of the options' cluster; it need not be there.
func (p *program) placeOf(s settings) (place, error) {
	name := s.text("cluster")
	if !clusterName.MatchString(name) {
		return place{}, usage{status.New(status.InvalidArgument, "--cluster is %q; expected up to 32 letters, digits, dots, dashes", name)}
	}
	base := s.text("dir")
	if base == "" {
		if run, ok := p.Lookup("XDG_RUNTIME_DIR"); ok && run != "" {
			base = filepath.Join(run, "pathways")
		} else if home, ok := p.Lookup("HOME"); ok && home != "" {
			base = filepath.Join(home, ".pathways")
		} else {
			return place{}, usage{status.New(status.FailedPrecondition, "neither XDG_RUNTIME_DIR nor HOME is set; say --dir")}
		}
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return place{}, err
	}
	c := place{filepath.Join(base, name), name}
	if len(c.path("worker-0000.sock")) > longestSocket {
		return place{}, usage{status.New(status.InvalidArgument, "the directory %s is too long for the name of a unix socket; say a shorter --dir", c.dir)}
	}
	return c, nil
}

func (c place) path(name string) string { return filepath.Join(c.dir, name) }

// address is where the controller of a cluster of this machine listens.
func (c place) address() string { return "unix:" + c.path("controller.sock") }

// make creates the directory, for this user alone, with a new secret.
func (c place) make() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return status.New(status.PermissionDenied, "cannot make the cluster's directory %s: %w", c.dir, err)
	}
	var secret [24]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return err
	}
	return os.WriteFile(c.path(cluster.TokenFile), []byte(hex.EncodeToString(secret[:])), 0o600)
}

// token reads the secret of a process: the variable, the file that is named, or
// that of the cluster's directory. "" where there is none.
func (p *program) token(s settings, c place) (string, error) {
	if v, ok := p.Lookup("PATHWAYS_TOKEN"); ok && v != "" {
		return v, nil
	}
	if path := s.text("token-file"); path != "" {
		return cluster.ReadToken(path)
	}
	token, err := cluster.ReadToken(c.path(cluster.TokenFile))
	if status.CodeOf(err) == status.NotFound {
		err = nil
	}
	return token, err
}

// process is one that `pathways up` started. The start time tells it from
// another that has its number by now.
type process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

// running reads the list of processes of a cluster that are alive.
func (c place) running() ([]process, error) {
	b, err := os.ReadFile(c.path("processes.json"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	var all, alive []process
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, status.New(status.DataLoss, "%s cannot be read: %v; stop the processes by hand and remove %s", c.path("processes.json"), err, c.dir)
	}
	for _, p := range all {
		if p.alive() {
			alive = append(alive, p)
		}
	}
	return alive, nil
}

func (c place) keep(all []process) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("processes.json"), b, 0o600)
}

// remove takes the directory away.
func (c place) remove() error { return os.RemoveAll(c.dir) }

// started gives the time at which a process was started, in the kernel's ticks;
// "" where there is no such process or it has ended.
func started(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in brackets, may hold anything; 20 fields on is the start.
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

func (p process) alive() bool { return p.PID > 0 && p.Start != "" && started(p.PID) == p.Start }

func (p process) signal(s syscall.Signal) {
	if p.alive() {
		_ = syscall.Kill(p.PID, s) // it may have ended just now
	}
}

// tail gives the last lines of a log.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(b) > 1<<16 {
		b = b[len(b)-1<<16:]
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
