package pjrt

// #include "driver.h"
import "C"

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// FindOptions say where Find looks. The zero value uses the environment.
type FindOptions struct {
	// Dirs are searched first, in order; each holds packages, as site-packages
	// does. The directories of PATHWAYS_PLUGIN_DIRS (separated by colons) follow.
	Dirs []string
	// Platform restricts the search to "cpu", "cuda" or "tpu"; "" means any.
	Platform string
	// Getenv reads the environment; nil means os.Getenv.
	Getenv func(string) string
	// Root replaces "/" as the parent of /dev and /sys; "" means "/".
	Root string
	// CacheDir keeps what was learned by loading a plugin; "" means the user's cache directory.
	CacheDir string
}

// Found is the plugin that Find chose.
type Found struct {
	Path string
	// Kind is "cpu", "cuda" or "tpu". For a plugin named by PATHWAYS_PLUGIN it is derived from the file's name;
	// Plugin.Kind is exact.
	Kind string
	Why  string // the rule that chose it, as a phrase
	// Candidates are all plugins that were found, including the chosen one, and kinds of device that were skipped.
	Candidates []Candidate
}

// Candidate is a plugin, or a kind of device, that Find considered.
type Candidate struct {
	Path, Name, Kind string
	Chosen           bool
	Note             string // why it was chosen or not
}

// The paths of plugins inside a directory of packages, best first.
var packaged = map[string][]string{
	"cuda": {"jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"},
	"tpu":  {"libtpu/libtpu.so"},
	"cpu": {"fastatomstruct_xla_cpu/libpjrt_cpu.so", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
		"xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"},
}

var installs = map[string]string{
	"cuda": `pip install "jax[cuda13]"`,
	"tpu":  "pip install libtpu",
	"cpu":  "pip install fastatomstruct-xla-cpu",
}

// RegisteredByJAX reports whether the plugin's package is one that JAX finds and registers
// itself.
func (f Found) RegisteredByJAX() bool {
	return slices.ContainsFunc(packaged["cuda"], func(file string) bool { return strings.HasSuffix(f.Path, "/"+file) })
}

// Find chooses the plugin to use. PATHWAYS_PLUGIN, a path, comes first; then the packaged plugin of CUDA, of TPU (each
// only if the hardware is there), and of the CPU. Of several CPU plugins the one with the newest StableHLO wins; only
// for that are plugins loaded, and the answer is cached by path, size and modification time.
func Find(o FindOptions) (Found, error) {
	o = o.filled()
	if path := o.Getenv("PATHWAYS_PLUGIN"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return Found{}, status.New(status.NotFound,
				"PATHWAYS_PLUGIN names %s, which cannot be read: set it to the path of a PJRT plugin (.so), or unset it: %w", path,
				err)
		}
		c := Candidate{Path: path, Name: filepath.Base(path), Kind: kindOfName(path)}
		return found(c, "PATHWAYS_PLUGIN names it", nil), nil
	}
	dirs := slices.Clone(o.Dirs)
	for _, d := range filepath.SplitList(o.Getenv("PATHWAYS_PLUGIN_DIRS")) {
		if d != "" && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	var seen []Candidate
	for _, kind := range []string{"cuda", "tpu", "cpu"} {
		if o.Platform != "" && o.Platform != kind {
			continue
		}
		have := search(dirs, kind)
		hardware, note := o.hardware(kind)
		if !hardware {
			for _, c := range have {
				c.Note = note
				seen = append(seen, c)
			}
			if len(have) == 0 {
				seen = append(seen, Candidate{Kind: kind, Note: note})
			}
			continue
		}
		if len(have) == 0 {
			seen = append(seen, Candidate{Kind: kind, Note: note + ", but no plugin for it: " + installs[kind]})
			continue
		}
		best, why := 0, note
		if kind == "cpu" && len(have) > 1 {
			best, why = o.newest(have)
		}
		chosen := have[best]
		have = slices.Delete(have, best, best+1)
		for i := range have {
			if have[i].Note == "" {
				have[i].Note = chosen.Name + " comes first"
			}
		}
		return found(chosen, why, append(seen, have...)), nil
	}
	return Found{}, notFound(o, dirs, seen)
}

func found(c Candidate, why string, others []Candidate) Found {
	c.Chosen = true
	if c.Note == "" {
		c.Note = why
	}
	return Found{Path: c.Path, Kind: c.Kind, Why: why, Candidates: append([]Candidate{c}, others...)}
}

func notFound(o FindOptions, dirs []string, seen []Candidate) error {
	var b strings.Builder
	b.WriteString("no PJRT plugin found. Looked for ")
	first := true
	for _, kind := range []string{"cuda", "tpu", "cpu"} {
		if o.Platform != "" && o.Platform != kind {
			continue
		}
		if ok, _ := o.hardware(kind); !ok && o.Platform == "" {
			continue
		}
		for _, file := range packaged[kind] {
			if !first {
				b.WriteString(", ")
			}
			first = false
			b.WriteString(file)
		}
	}
	if len(dirs) == 0 {
		b.WriteString(" but was given no directory to look in (PATHWAYS_PLUGIN_DIRS is not set)")
	} else {
		b.WriteString(" in " + strings.Join(dirs, ", "))
	}
	for _, c := range seen {
		if c.Kind == "cpu" {
			continue
		}
		fmt.Fprintf(&b, "; %s: %s", c.Kind, c.Note)
	}
	kind := o.Platform
	if installs[kind] == "" {
		kind = "cpu"
	}
	fmt.Fprintf(&b, ". Install one (%s) or set PATHWAYS_PLUGIN to the path of a plugin.", installs[kind])
	return status.New(status.NotFound, "%s", b.String())
}

// search lists the packaged plugins of a kind, each file once.
func search(dirs []string, kind string) []Candidate {
	var have []Candidate
	seen := map[string]bool{}
	for _, dir := range dirs {
		for _, file := range packaged[kind] {
			path := filepath.Join(dir, file)
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if r, err := filepath.EvalSymlinks(path); err == nil {
				if seen[r] {
					continue
				}
				seen[r] = true
			}
			have = append(have, Candidate{Path: path, Name: filepath.Base(filepath.Dir(path)), Kind: kind})
		}
	}
	return have
}

func kindOfName(path string) string {
	name := strings.ToLower(filepath.Base(path))
	switch {
	case strings.Contains(name, "tpu"):
		return "tpu"
	case strings.Contains(name, "cuda"), strings.Contains(name, "gpu"):
		return "cuda"
	}
	return "cpu"
}

// hardware reports whether there are devices of a kind, and how that was found out.
func (o FindOptions) hardware(kind string) (bool, string) {
	switch kind {
	case "cuda":
		if v := o.Getenv("CUDA_VISIBLE_DEVICES"); v == "-1" || v == "none" || v == "void" {
			return false, "CUDA_VISIBLE_DEVICES=" + v + " hides the GPUs"
		}
		if n := len(o.nodes("dev/nvidia[0-9]*")); n > 0 {
			return true, "this machine has " + status.Count(n, "NVIDIA device node")
		}
		// Under WSL there is one node for all GPUs, and the driver's library.
		if len(o.nodes("dev/dxg")) > 0 && loads("libcuda.so.1") {
			return true, "this machine has /dev/dxg and libcuda.so.1"
		}
		return false, "no NVIDIA GPU here (no /dev/nvidia0)"
	case "tpu":
		if n := len(o.nodes("dev/accel[0-9]*")); n > 0 {
			return true, "this machine has " + status.Count(n, "TPU device node")
		}
		if n := len(o.nodes("dev/vfio/[0-9]*")); n > 0 && o.googlePCI() {
			return true, "this machine has " + status.Count(n, "TPU device group")
		}
		return false, "no TPU here (no /dev/accel0, no Google device in /dev/vfio)"
	}
	return true, "the packaged CPU plugin"
}

// filled returns the options with defaults for those that are not set.
func (o FindOptions) filled() FindOptions {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Root == "" {
		o.Root = "/"
	}
	return o
}

// GPUs counts the NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES does not hide.
func (o FindOptions) GPUs() int {
	o = o.filled()
	if there, _ := o.hardware("cuda"); !there {
		return 0
	}
	n := max(1, len(o.nodes("dev/nvidia[0-9]*"))) // under WSL there is one node for all
	if v := o.Getenv("CUDA_VISIBLE_DEVICES"); v != "" {
		n = min(n, len(strings.Split(v, ",")))
	}
	return n
}

func (o FindOptions) nodes(pattern string) []string {
	m, _ := filepath.Glob(filepath.Join(o.Root, pattern)) // the patterns are constants and well formed
	return m
}

// googlePCI reports whether a PCI device of Google (vendor 0x1ae0) is there.
func (o FindOptions) googlePCI() bool {
	for _, f := range o.nodes("sys/bus/pci/devices/*/vendor") {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == "0x1ae0" {
			return true
		}
	}
	return false
}

func loads(library string) bool {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	return C.pwdrv_loads(name) != 0
}

// newest chooses from several plugins the first with the newest StableHLO. It writes into have the version of each, or
// why it cannot be used.
func (o FindOptions) newest(have []Candidate) (best int, why string) {
	cache := o.openCache()
	versions := make([][]int64, len(have))
	for i := range have {
		v, err := cache.stablehlo(have[i].Path)
		if err != nil {
			have[i].Note = err.Error()
			continue
		}
		versions[i] = v
		have[i].Note = "StableHLO " + dotted(v)
		if slices.Compare(v, versions[best]) > 0 {
			best = i
		}
	}
	cache.save()
	if versions[best] == nil {
		return best, "the first of several CPU plugins (none says its StableHLO version)"
	}
	return best, "of the CPU plugins it has the newest StableHLO, " + dotted(versions[best])
}

func dotted(v []int64) string {
	if len(v) == 0 {
		return "of unknown version"
	}
	var parts []string
	for _, n := range v {
		parts = append(parts, fmt.Sprint(n))
	}
	return strings.Join(parts, ".")
}

// cache remembers the StableHLO version of plugins, because reading it means loading hundreds of megabytes, and the
// hash of those that workers have used. It is only an optimization: every failure to read or write it is ignored.
type cache struct {
	file    string
	changed bool
	Plugins map[string]cached `json:"plugins"`
}

type cached struct {
	Size      int64   `json:"size"`
	Modified  int64   `json:"modified"` // nanoseconds since 1970
	StableHLO []int64 `json:"stablehlo"`
	SHA256    string  `json:"sha256,omitempty"` // in hex; "" if not known yet
}

func (o FindOptions) openCache() *cache {
	dir := o.CacheDir
	if dir == "" {
		if d, err := os.UserCacheDir(); err == nil {
			dir = filepath.Join(d, "pathways")
		}
	}
	c := &cache{}
	if dir != "" {
		c.file = filepath.Join(dir, "plugins.json")
		if b, err := os.ReadFile(c.file); err == nil && json.Unmarshal(b, c) != nil {
			c.Plugins = nil
		}
	}
	if c.Plugins == nil {
		c.Plugins = map[string]cached{}
	}
	return c
}

func (c *cache) stablehlo(path string) ([]int64, error) {
	known, err := c.known(path)
	return known.StableHLO, err
}

// known returns what the cache has for a plugin, and loads the plugin if it has nothing.
func (c *cache) known(path string) (cached, error) {
	info, err := os.Stat(path)
	if err != nil {
		return cached{}, err
	}
	now := cached{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if was, ok := c.Plugins[path]; ok && was.Size == now.Size && was.Modified == now.Modified {
		return was, nil
	}
	p, err := Open(path)
	if err != nil {
		return cached{}, err
	}
	now.StableHLO, _ = p.Attributes()["stablehlo_current_version"].([]int64)
	c.Plugins[path] = now
	c.changed = true
	return now, nil
}

func (c *cache) sha256(path string) (string, error) {
	known, err := c.known(path)
	if err != nil || known.SHA256 != "" {
		return known.SHA256, err
	}
	if known.SHA256, err = sum(path); err != nil {
		return "", err
	}
	c.Plugins[path] = known
	c.changed = true
	return known.SHA256, nil
}

// Build returns the file that the client's plugin was loaded from, and the hash of its contents: programs compiled by
// another file may not be valid for this one. "" if the plugin is part of the process.
func (c *Client) Build() string { return contents(c.plugin.path, FindOptions{}.openCache()) }

func contents(path string, cache *cache) string {
	hash, err := cache.sha256(path)
	if err != nil {
		return ""
	}
	cache.save()
	return filepath.Base(path) + " with SHA-256 " + hash
}

func (c *cache) save() {
	if !c.changed || c.file == "" {
		return
	}
	b, err := json.Marshal(c)
	if err != nil || os.MkdirAll(filepath.Dir(c.file), 0o700) != nil {
		return
	}
	t, err := os.CreateTemp(filepath.Dir(c.file), "plugins-*")
	if err != nil {
		return
	}
	_, err = t.Write(b)
	if t.Close() != nil || err != nil || os.Rename(t.Name(), c.file) != nil {
		os.Remove(t.Name())
	}
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", system.Error(err, "cannot hash the plugin")
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", system.Error(err, "cannot hash the plugin")
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
