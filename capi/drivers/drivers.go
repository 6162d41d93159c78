// Package drivers opens the devices of this machine by the name of what drives
// them. It is where a program links in every driver there is.
package drivers

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
	"github.com/openpathways/pathways/device/pjrt"
	"github.com/openpathways/pathways/device/sim"
)

var (
	mu        sync.Mutex
	installed []string // guarded by mu: directories of installed packages
)

// SetDirs sets where packages, and so plugins, are installed. It has an effect only before the plugin is looked for.
func SetDirs(dirs []string) {
	mu.Lock()
	defer mu.Unlock()
	installed = dirs
}

// Dirs returns the directories where plugins may be installed: those of SetDirs, and the directory of the package of
// this library.
func Dirs() []string {
	mu.Lock()
	defer mu.Unlock()
	dirs := slices.Clone(installed)
	if path := base.Library(); path != "" {
		dirs = append(dirs, filepath.Dir(filepath.Dir(path)))
	}
	return dirs
}

// Want describes a kind of devices.
type Want struct {
	// Name is "auto" for the best there is on this machine, "cpu", "cuda", "tpu", "sim" for
	// simulated devices or "sim:KIND" for those of a platform sim_KIND, or the path of a PJRT plugin; "" is "auto".
	Name string
	// Count is the number of devices, if the driver supports a choice; 0 is its default.
	Count int
	// First is the index of the first GPU of so many.
	First int
	// Dirs hold packages with plugins.
	Dirs []string
	// Loaded is called with the plugin before a client of it is made; it may be nil.
	Loaded func(*pjrt.Plugin)
	// OwnProcess is that of pjrt.ClientOptions.
	OwnProcess bool
}

// simulated matches the names of drivers of simulated devices.
var simulated = regexp.MustCompile(`^sim(:[a-z0-9_]+)?$`)

// GPUs counts the GPUs of this machine that this name stands for, 0 if none.
func GPUs(name string) int {
	if name != "" && name != "auto" && name != "cuda" {
		return 0
	}
	look := pjrt.FindOptions{Dirs: Dirs(), Platform: "cuda"} // which comes first, and loads no plugin to compare it
	if found, err := pjrt.Find(look); err != nil || found.Kind != "cuda" {
		return 0
	}
	return look.GPUs()
}

// Kind finds a kind of devices.
//
// Errors: INVALID_ARGUMENT for another name; those of pjrt.Find and Open.
func Kind(want Want) (device.Kind, error) {
	name, count := want.Name, want.Count
	look := pjrt.FindOptions{Dirs: want.Dirs}
	switch {
	case simulated.MatchString(name):
		return sim.Kind{Options: sim.Options{Devices: count, Platform: strings.Replace(name, ":", "_", 1)}}, nil
	case name == "auto" || name == "":
	case name == "cpu" || name == "cuda" || name == "tpu":
		look.Platform = name
	case strings.ContainsRune(name, filepath.Separator):
		look.Getenv = func(v string) string {
			if v == "PATHWAYS_PLUGIN" {
				return name
			}
			return os.Getenv(v)
		}
	default:
		return nil, status.New(status.InvalidArgument,
			"there is no driver %q; expected auto, cpu, cuda, tpu, sim, sim:KIND with small letters, or "+
				"the path of a PJRT plugin", name)
	}
	found, err := pjrt.Find(look)
	if err != nil {
		return nil, err
	}
	p, err := pjrt.Open(found.Path)
	if err != nil {
		return nil, err
	}
	if want.Loaded != nil {
		want.Loaded(p)
	}
	return pjrt.NewKind(p, pjrt.ClientOptions{Devices: count, First: want.First, OwnProcess: want.OwnProcess}), nil
}
