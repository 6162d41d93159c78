// Package host reports how much of its machine's memory this process may use and how much
// is left, lends Go processors beyond its share of the machine, and has long work leave
// them to others.
//
// Its functions may be called from any goroutine. It imports nothing of the
// module; users of drivers and frontends may import it.
package host

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that this process may use: the machine's memory, or
// the lowest limit of the control groups that the process is in. It returns 0 if the
// system does not say.
func Memory() int64 { return memory(os.DirFS("/")) }

// Available returns the bytes of memory that this process may take beyond what it and others have: those that the
// machine has available, or the fewest that one of the process's control groups has left. Copies of files count as
// available, since the system drops them first. It returns math.MaxInt64 if the system does not say.
func Available() int64 { return available(os.DirFS("/")) }

// memory implements Memory for a root directory that contains proc and sys.
func memory(root fs.FS) int64 {
	least := of(root, "MemTotal:")
	for _, g := range groups(root) {
		if limit := g.number(root, g.limit); limit > 0 && (least <= 0 || limit < least) {
			least = limit
		}
	}
	return max(least, 0)
}

// available implements Available, as memory does Memory.
func available(root fs.FS) int64 {
	least := of(root, "MemAvailable:")
	if least < 0 {
		least = math.MaxInt64
	}
	for _, g := range groups(root) {
		limit := g.number(root, g.limit)
		if limit <= 0 {
			continue
		}
		used := g.number(root, g.used)
		if used < 0 || limit-used >= least {
			continue // also with what its copies of files add
		}
		least = min(least, max(limit-max(used-g.files(root), 0), 0))
	}
	return least
}

// of returns the bytes of a line of meminfo, or -1 if they are not known.
func of(root fs.FS, name string) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name && fields[2] == "kB" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err == nil && n >= 0 && n <= math.MaxInt64>>10 {
				return n << 10
			}
		}
	}
	return -1
}

// group is a control group, of either version: its directory, and the names of what it counts.
type group struct{ dir, limit, used, prefix string }

// groups returns the process's control group and those above it.
func groups(root fs.FS) []group {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	var found []group
	for line := range strings.Lines(string(text)) {
		// number:controllers:path, with no controllers for version 2
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		g := group{"sys/fs/cgroup", "memory.max", "memory.current", ""}
		if parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			g = group{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}
		}
		mount := g.dir
		// In a container the path may be the host's; then only the root exists.
		for at := path.Clean("/" + parts[2]); ; at = path.Dir(at) {
			g.dir = path.Join(mount, at)
			found = append(found, g)
			if at == "/" {
				break
			}
		}
	}
	return found
}

// number returns what a file of the group says, or -1 if that is no number: a group without a limit has "max", or a
// number larger than any machine's memory.
func (g group) number(root fs.FS, file string) int64 {
	text, err := fs.ReadFile(root, path.Join(g.dir, file))
	if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
		return n
	}
	return -1
}

// files returns how many of the bytes that the group uses are copies of files. Shared memory is not among them.
func (g group) files(root fs.FS) (sum int64) {
	text, _ := fs.ReadFile(root, path.Join(g.dir, "memory.stat"))
	for line := range strings.Lines(string(text)) {
		if name, bytes, _ := strings.Cut(strings.TrimSpace(line), " "); name == g.prefix+"inactive_file" ||
			name == g.prefix+"active_file" {
			n, _ := strconv.ParseInt(bytes, 10, 64)
			sum += n
		}
	}
	return sum
}
