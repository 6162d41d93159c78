package host

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/openpathways/pathways/core/status/statustest"
)

func TestMemoryIsTheLeastOfTheMachinesAndItsControlGroups(t *testing.T) {
	const machine = "MemFree: 7 kB\nMemTotal:       16 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known": {nil, 0},
		"only the machine": {map[string]string{"proc/meminfo": machine}, 16 << 10},
		"no number":        {map[string]string{"proc/meminfo": "MemTotal: much kB\n"}, 0},
		"a group without a limit": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 16 << 10},
		"a group with one": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000},
		"one above it has less": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/memory.max": "4000\n"}, 4000},
		"a container that sees its own group as the root": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		"version 1": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "4:cpu,cpuacct:/q\n3:memory:/q\n",
			"sys/fs/cgroup/memory/q/memory.limit_in_bytes":    "2000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":      "9223372036854771712\n",
			"sys/fs/cgroup/cpu/q/memory.limit_in_bytes":       "1\n",
			"sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes": "1\n"}, 2000},
		"only a group": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "3000\n"}, 3000},
	} {
		statustest.Equal(t, memory(system(c.files)), c.want, "%s: bytes", name)
	}
}

// system is a root directory with these files.
func system(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for file, text := range files {
		root[file] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestAvailableIsTheLeastThatTheMachineAndItsControlGroupsHaveLeft(t *testing.T) {
	const machine = "MemTotal: 16 kB\nMemFree: 2 kB\nMemAvailable: 8 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known": {nil, math.MaxInt64},
		"only the machine": {map[string]string{"proc/meminfo": machine}, 8 << 10},
		"none is left":     {map[string]string{"proc/meminfo": "MemAvailable: 0 kB\n"}, 0},
		"a group without a limit": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1000\n"}, 8 << 10},
		"a group with more left than the machine": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "12000\n",
			"sys/fs/cgroup/a/memory.current": "1000\n"}, 8 << 10},
		"a group with less, beside copies of files": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "5000\n",
			"sys/fs/cgroup/a/memory.current": "4000\n",
			"sys/fs/cgroup/a/memory.stat":    "anon 1\nfile 3000\nshmem 500\ninactive_file 2000\nactive_file 300\n"}, 3300},
		"one above it has less": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/b/memory.current": "1000\n",
			"sys/fs/cgroup/a/memory.max": "6000\n", "sys/fs/cgroup/a/memory.current": "5500\n"}, 500},
		"a group beyond its limit": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "6000\n"}, 0},
		"a group that does not say what it uses": {map[string]string{"proc/meminfo": machine,
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 8 << 10},
		"version 1": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "3:memory:/q\n",
			"sys/fs/cgroup/memory/q/memory.limit_in_bytes": "5000\n",
			"sys/fs/cgroup/memory/q/memory.usage_in_bytes": "4000\n",
			"sys/fs/cgroup/memory/q/memory.stat":           "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n",
		}, 1120},
	} {
		statustest.Equal(t, available(system(c.files)), c.want, "%s: bytes", name)
	}
}

func TestThisMachineHasMemory(t *testing.T) {
	if n := Memory(); n < 64<<20 {
		t.Errorf("this machine has %d bytes of memory, want what a test needs at least", n)
	}
	if n := Available(); n <= 0 || n > Memory() {
		t.Errorf("of the machine's %d bytes of memory %d are available", Memory(), n)
	}
}
