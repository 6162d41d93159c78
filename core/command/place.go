package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openpathways/pathways/core/cluster"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/wire"
)

// place is the directory of a cluster on this machine.
type place struct {
	dir, cluster string
	above        string // see cluster.Directory
}

// placeOf returns the directory of the cluster that the options name; it need not exist.
func (p *program) placeOf(s settings) (place, error) {
	d, err := cluster.DirectoryOf(s.text("dir"), s.text("cluster"), p.Lookup)
	if err != nil {
		return place{}, usage{err}
	}
	return place{d.Path, s.text("cluster"), d.Above}, nil
}

func (c place) directory() cluster.Directory { return cluster.Directory{Path: c.dir, Above: c.above} }

func (c place) path(name string) string { return filepath.Join(c.dir, name) }

// address returns the address of the controller of a cluster on this machine.
func (c place) address() string { return "unix:" + c.path(cluster.Socket) }

// found returns nil if a controller of the cluster has made its socket.
//
// Errors: NOT_FOUND; the message names the clusters that exist.
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
		return status.New(status.NotFound,
			"there is no cluster %q: %s has none; start one with `pathways up`, or name another directory with --dir", c.cluster,
			all)
	}
	return status.New(status.NotFound, "there is no cluster %q in %s, which has %s; name one of them with --cluster, or "+
		"start another with `pathways up`", c.cluster, all, strings.Join(names, ", "))
}

// placeAt returns the directory of the cluster whose controller listens at an address, and reports whether the address
// is a socket of a cluster on this machine.
func placeAt(address string) (place, bool) {
	dir := filepath.Dir(strings.TrimPrefix(address, "unix:"))
	c := place{dir: dir, cluster: filepath.Base(dir)}
	return c, address == c.address()
}

// secret returns the credentials of a process: the token of the variable or of the named file, or else the token that a
// controller on this machine keeps.
func (p *program) secret(s settings, c place) (cluster.Secret, error) {
	secret := cluster.Secret{Directory: c.dir, Cert: s.text("tls-cert"), Key: s.text("tls-key"), CA: s.text("tls-ca")}
	if s.Lookup("tls-mutual") != nil { // a command that listens
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

// process is a process that `pathways up` started. Its start time distinguishes it from a
// later process with the same ID.
type process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start string `json:"start"`

	Args      []string `json:"args,omitempty"`      // to start it again
	Restarts  int      `json:"restarts,omitempty"`  // how often it was restarted
	Restarted int64    `json:"restarted,omitempty"` // when it was last restarted, in Unix milliseconds
	Failed    string   `json:"failed,omitempty"`    // why it is no longer restarted
	LogBegins int64    `json:"logBegins,omitempty"` // where in its log file what it says begins
}

// isSame reports whether p and q are the same process.
func (p process) isSame(q process) bool { return p.PID == q.PID && p.Start == q.Start }

// listed reads the list of processes of a cluster; it returns nil if there is none.
func (c place) listed() (all []process, err error) {
	b, err := os.ReadFile(c.path(listFile))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return nil, status.New(status.DataLoss, "%s cannot be read: %v; stop the processes by hand and remove %s",
			c.path(listFile), err, c.dir)
	}
	return all, nil
}

// running returns the cluster's processes that are alive.
func (c place) running() (alive []process, err error) {
	all, err := c.listed()
	for _, p := range all {
		if p.isAlive() {
			alive = append(alive, p)
		}
	}
	return alive, err
}

// askAt is cluster.Ask. If the controller of a cluster that `pathways up` started has ended alone, the error says how
// to start it again.
func askAt(ctx context.Context, address string, secret cluster.Secret, what *wire.Ask) (*wire.Report, error) {
	r, err := cluster.Ask(ctx, address, secret, what)
	if c, ok := placeAt(address); ok && status.CodeOf(err) == status.Unavailable {
		err = cmp.Or(c.missing(), err)
	}
	return r, err
}

// ask is askAt for a command whose user sees nothing until there is an answer.
func (p *program) ask(ctx context.Context, address string, secret cluster.Secret, what *wire.Ask) (r *wire.Report,
	_ error) {
	err := p.waits("the controller at "+address+" has not answered yet; waiting for it", func() (err error) {
		r, err = askAt(ctx, address, secret, what)
		return err
	})
	return r, err
}

// saysAfter is how long a command waits before it says so: answers take a few milliseconds.
const saysAfter = 2 * time.Second

// waits calls f, and prints a line if that takes long.
func (p *program) waits(line string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	slow := time.NewTimer(saysAfter)
	defer slow.Stop()
	select {
	case err := <-done:
		return err
	case <-slow.C:
		p.say("%s", line)
		return <-done
	}
}

// isServed reports whether a controller listens at the socket in the directory.
func (c place) isServed() bool {
	conn, err := net.Dial("unix", c.path(cluster.Socket))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// missing returns an error if the controller that `pathways up` started has ended, while other processes of the cluster
// are alive and wait for it; the error says how it is started again. Somebody may have done so by hand: see isServed.
//
// Errors: UNAVAILABLE.
func (c place) missing() error {
	all, err := c.listed()
	i := slices.IndexFunc(all, func(q process) bool { return q.Name == controllerName })
	if err != nil || i < 0 || all[i].isAlive() {
		return nil
	}
	isSupervised, wasSupervised, others := false, false, 0
	for _, q := range all {
		switch {
		case !q.isAlive():
			wasSupervised = wasSupervised || q.Name == supervisorName
		case q.Name == supervisorName:
			isSupervised = true
		default:
			others++
		}
	}
	switch {
	case isSupervised:
		return status.New(status.Unavailable, "the controller of cluster %q has ended, and its supervisor starts it again; "+
			"try again in a few seconds, or see %s", c.cluster, c.path(supervisorName+".log"))
	case others > 0 && wasSupervised:
		return status.New(status.Unavailable, "the controller and the supervisor of cluster %q have died, and left %s "+
			"behind%[5]s; start both again with `pathways up --dir %[3]s --cluster %[4]s`, or end what is left with "+
			"`pathways down --dir %[3]s --cluster %[4]s`", c.cluster, status.Count(others, "process"), filepath.Dir(c.dir),
			c.cluster, forLease(all[i].Args))
	case others > 0:
		return status.New(status.Unavailable, "the controller of cluster %q has ended, and left %s behind%s; "+
			"start it again with `pathways %s`, or end what is left with `pathways down --dir %s --cluster %s`", c.cluster,
			status.Count(others, "process"), forLease(all[i].Args), commandLine(all[i].Args), filepath.Dir(c.dir), c.cluster)
	}
	return nil
}

// forLease says how long processes wait for a controller with these arguments; "" if they do not say.
func forLease(args []string) string {
	if i := slices.Index(args, "--lease"); i >= 0 && i+1 < len(args) {
		return fmt.Sprintf(", for %s at most (its --lease)", args[i+1])
	}
	return ""
}

// commandLine returns arguments as a shell takes them, without options whose value is empty.
func commandLine(args []string) string {
	var words []string
	for i := 0; i < len(args); i++ {
		if strings.HasPrefix(args[i], "--") && i+1 < len(args) && args[i+1] == "" {
			i++
			continue
		}
		word := args[i]
		if strings.ContainsAny(word, " \t\n'\"\\$`*?[](){}<>|&;#~!") {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// listFile is the list of a cluster's processes in its directory.
const listFile = "processes.json"

// keep writes the list of a cluster's processes atomically: a reader sees the old list or
// the new one.
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

// remove removes the directory after moving the logs elsewhere. It returns their new place, or "" if there are none. It
// keeps the directory and a token in it that a controller outside of this cluster uses.
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
	// keptRuns is the number of runs of a cluster whose logs are kept.
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
	runs, err := os.ReadDir(all) // sorted by name, and so by time
	for i := 0; err == nil && i < len(runs)-keptRuns; i++ {
		err = os.RemoveAll(filepath.Join(all, runs[i].Name()))
	}
	if os.IsNotExist(err) {
		err = nil
	}
	return kept, system.Error(err, "cannot remove the logs of older runs")
}

// started returns the time at which a process was started, in the kernel's ticks, or ""
// if there is no such process or it has ended.
func started(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in brackets, may contain anything; the start time is 20 fields after it.
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

func (p process) isAlive() bool { return p.PID > 0 && p.Start != "" && started(p.PID) == p.Start }

func (p process) signal(s syscall.Signal) {
	if p.isAlive() {
		_ = syscall.Kill(p.PID, s) // fails if it has just ended
	}
}

// endBytes bounds what readEnd returns: the stack traces of a process's threads may be long.
const endBytes = 256 << 10

// readEnd returns the end of a log, of what is behind its first bytes.
func readEnd(path string, first int64) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	b = b[min(first, int64(len(b))):]
	return string(b[max(0, len(b)-endBytes):])
}

// tail returns the last lines of a log behind its first bytes.
func tail(path string, first int64, lines int) string {
	all := strings.Split(strings.TrimRight(readEnd(path, first), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
