package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// place is the directory of a cluster on this machine.
type place struct {
	dir, cluster string
	above        string // see cluster.Directory
}

// placeOf finds the directory of the options' cluster; it need not be there.
func (p *program) placeOf(s settings) (place, error) {
	d, err := cluster.DirectoryOf(s.text("dir"), s.text("cluster"), p.Lookup)
	if err != nil {
		return place{}, usage{err}
	}
	return place{d.Path, s.text("cluster"), d.Above}, nil
}

func (c place) directory() cluster.Directory { return cluster.Directory{Path: c.dir, Above: c.above} }

func (c place) path(name string) string { return filepath.Join(c.dir, name) }

// address is where the controller of a cluster of this machine listens.
func (c place) address() string { return "unix:" + c.path(cluster.Socket) }

// found returns nil where a controller of the cluster has made its socket.
//
// Errors: NOT_FOUND, naming the clusters that there are.
func (c place) found() error {
	isUp := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, cluster.Socket))
		return err == nil
	}
	if isUp(c.dir) {
		return nil
	}
	all := filepath.Dir(c.dir)
	there, err := os.ReadDir(all)
	if err != nil && !os.IsNotExist(err) {
		return system.Error(err, "cannot look for the cluster %q", c.cluster)
	}
	var names []string
	for _, d := range there {
		if isUp(filepath.Join(all, d.Name())) {
			names = append(names, d.Name())
		}
	}
	if len(names) == 0 {
		return status.New(status.NotFound, "there is no cluster %q: %s has none; `pathways up` starts one, and --dir names another directory", c.cluster, all)
	}
	return status.New(status.NotFound, "there is no cluster %q in %s, which has %s; name one of them by --cluster, or start another by `pathways up`", c.cluster, all, strings.Join(names, ", "))
}

// placeAt returns the directory of the cluster whose controller listens at an address; false where the address is no
// socket of a cluster of this machine.
func placeAt(address string) (place, bool) {
	dir := filepath.Dir(strings.TrimPrefix(address, "unix:"))
	c := place{dir: dir, cluster: filepath.Base(dir)}
	return c, address == c.address()
}

// secret is what a process shows to others of its cluster: the token of the variable or of the file that is named;
// without them, what a controller on this machine keeps.
func (p *program) secret(s settings, c place) (cluster.Secret, error) {
	secret := cluster.Secret{Directory: c.dir, Cert: s.text("tls-cert"), Key: s.text("tls-key"), CA: s.text("tls-ca")}
	if s.Lookup("tls-mutual") != nil { // of a command that listens
		secret.TokenSuffices = !s.flag("tls-mutual")
	}
	if v, ok := p.Lookup("PATHWAYS_TOKEN"); ok && v != "" {
		secret.Token = v
		return secret, nil
	}
	var err error
	if path := s.text("token-file"); path != "" {
		if secret.TokenPath, err = filepath.Abs(path); err == nil {
			secret.Token, err = cluster.ReadToken(path)
		}
	}
	return secret, err
}

// process is one that `pathways up` started. The start time tells it from
// another that has its number by now.
type process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start string `json:"start"`

	Args      []string `json:"args,omitempty"`      // by which it is started again
	Restarts  int      `json:"restarts,omitempty"`  // how often it was
	Restarted int64    `json:"restarted,omitempty"` // when it last was, in Unix milliseconds
	Failed    string   `json:"failed,omitempty"`    // why it is not started again any more
}

// same reports whether both are one process.
func (p process) same(q process) bool { return p.PID == q.PID && p.Start == q.Start }

// listed reads the list of processes of a cluster, nil where there is none.
func (c place) listed() (all []process, err error) {
	b, err := os.ReadFile(c.path(listFile))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, status.New(status.DataLoss, "%s cannot be read: %v; stop the processes by hand and remove %s", c.path(listFile), err, c.dir)
	}
	return all, nil
}

// running returns those of a cluster's processes that are alive.
func (c place) running() (alive []process, err error) {
	all, err := c.listed()
	for _, p := range all {
		if p.alive() {
			alive = append(alive, p)
		}
	}
	return alive, err
}

// listFile is the list of a cluster's processes in its directory.
const listFile = "processes.json"

// keep writes the list of a cluster's processes. Who reads it meanwhile sees the list
// before or the one after.
func (c place) keep(all []process) error {
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	next := c.path(listFile + ".next")
	if err = os.WriteFile(next, b, 0o600); err == nil {
		err = os.Rename(next, c.path(listFile))
	}
	return system.Error(err, "cannot write the list of the cluster's processes")
}

// remove takes the directory away, and keeps the logs elsewhere. It returns where; "" where there are none. A token that
// a controller outside of this cluster asks for stays, with its directory.
func (c place) remove() (logs string, err error) {
	if logs, err = c.keepLogs(time.Now()); err != nil {
		return "", err
	}
	if !c.directory().IsTokenHeld() {
		return logs, system.Error(os.RemoveAll(c.dir), "cannot remove the cluster's directory")
	}
	files, err := os.ReadDir(c.dir)
	for _, f := range files {
		if err == nil && f.Name() != cluster.TokenFile {
			err = os.RemoveAll(c.path(f.Name()))
		}
	}
	return logs, system.Error(err, "cannot empty the cluster's directory")
}

const (
	// logsDir is beside the clusters' directories; no cluster's name begins with a dot.
	logsDir = ".logs"
	// keptRuns is how many runs of a cluster have their logs kept.
	keptRuns = 10
)

// keepLogs moves the logs of a run that ended now to a directory of their own, and removes those of the oldest runs.
func (c place) keepLogs(now time.Time) (string, error) {
	files, err := os.ReadDir(c.dir)
	if err != nil && !os.IsNotExist(err) {
		return "", system.Error(err, "cannot read %s", c.dir)
	}
	all := filepath.Join(filepath.Dir(c.dir), logsDir, c.cluster)
	run := filepath.Join(all, now.UTC().Format("20060102T150405.000000Z"))
	kept := ""
	for _, f := range files {
		if filepath.Ext(f.Name()) != ".log" {
			continue
		}
		if err := os.MkdirAll(run, 0o700); err != nil {
			return "", system.Error(err, "cannot keep the logs in %s", run)
		}
		if err := os.Rename(c.path(f.Name()), filepath.Join(run, f.Name())); err != nil {
			return "", system.Error(err, "cannot keep the logs in %s", run)
		}
		kept = run
	}
	runs, err := os.ReadDir(all) // by name, which is by time
	for i := 0; err == nil && i < len(runs)-keptRuns; i++ {
		err = os.RemoveAll(filepath.Join(all, runs[i].Name()))
	}
	if os.IsNotExist(err) {
		err = nil
	}
	return kept, system.Error(err, "cannot remove the logs of older runs")
}

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
