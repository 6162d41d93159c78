// Package python is the C API, pathways_*, for callers that are not PJRT clients: the Python package, other runtimes,
// tools. pathways.h is its contract.
package python

/*
#cgo CFLAGS: -I${SRCDIR}/../../device/pjrt/abi -I${SRCDIR}/../base -I${SRCDIR}/../embedded -I${SRCDIR}/../cluster -I${SRCDIR}/../export -I${SRCDIR}/../capture -I${SRCDIR}/../slices -std=gnu11 -O2 -Wall -Wextra -Wshadow
#include <stdbool.h>
#include <stdint.h>
*/
import "C"

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/openpathways/pathways/capi/base"
	"github.com/openpathways/pathways/capi/capture"
	"github.com/openpathways/pathways/capi/cluster"
	"github.com/openpathways/pathways/capi/drivers"
	"github.com/openpathways/pathways/capi/embedded"
	"github.com/openpathways/pathways/capi/export"
	"github.com/openpathways/pathways/capi/profile"
	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/pjrt/abi"
)

// text makes a C string that the caller frees.
func text(v any) *C.char {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte("{}")
	}
	return C.CString(string(b))
}

//export pwGoDirs
func pwGoDirs(list *C.char) { drivers.SetDirs(strings.Split(C.GoString(list), ":")) }

//export pwGoStats
func pwGoStats() *C.char {
	st, r := embedded.ReadStats(), cluster.ReadStats()
	st.GoEntries += r.GoEntries
	st.Executes += r.Executes
	st.Puts += r.Puts
	st.Moved += r.Moved
	st.Sessions += int(r.Sessions)
	st.Fetches += r.Fetches
	st.Reshards += r.Reshards
	if n := export.Count(); n > 0 {
		st.Live["exported"] = n
	}
	if n := capture.Count(); n > 0 {
		st.Live["captured"] = n
	}
	for kind, n := range r.Live {
		st.Live[kind] += n
	}
	return text(struct {
		embedded.Stats
		UnderWay int64 `json:"under_way"`
		Copied   int64 `json:"copied"`
	}{st, r.UnderWay, r.Copied})
}

//export pwGoStatus
func pwGoStatus() *C.char {
	return C.CString(string(wire.AppendJSON(nil, embedded.Report())))
}

// pwGoCluster sets the cluster of clients made from now on, for table.c. The table can change only while there are no
// clients of the other one.
//
//export pwGoCluster
func pwGoCluster(address, versions *C.char, change C.bool) *C.char {
	same := map[string]string{}
	if text := C.GoString(versions); text != "" {
		if err := json.Unmarshal([]byte(text), &same); err != nil {
			return C.CString(fmt.Sprintf("%v: the versions are not a JSON object of texts: %v", status.InvalidArgument, err))
		}
	}
	if change {
		live := 0
		for _, counts := range []map[string]int64{embedded.ReadStats().Live, cluster.ReadStats().Live} {
			live += int(counts["clients"] + counts["executables"] + counts["buffers"])
		}
		if live > 0 {
			return C.CString(fmt.Sprintf("%v: %d clients, executables and buffers of the devices used until now are alive; "+
				"call pathways.shutdown() and drop all arrays first, or start a new process", status.FailedPrecondition, live))
		}
	}
	cluster.Use(C.GoString(address),
		func(ctx context.Context, address string, want cluster.Want, notify client.Notify) (client.Cluster, error) {
			return cluster.Connect(ctx, address, want, same, notify)
		})
	return nil
}

//export pwGoLost
func pwGoLost() *C.char { return refusal(cluster.Lost()) }

//export pwGoMoments
func pwGoMoments(after C.uint64_t, timeoutMs C.int64_t) *C.char {
	list, last := cluster.Moments(uint64(after), time.Duration(max(0, timeoutMs))*time.Millisecond)
	return text(struct {
		Last    uint64             `json:"last"`
		Moments []cluster.Numbered `json:"moments"`
	}{last, list})
}

type version struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

type plugin struct {
	Path       string         `json:"path"`
	Kind       string         `json:"kind"`
	Why        string         `json:"why"`
	PJRT       version        `json:"pjrt_version"`
	Attributes map[string]any `json:"attributes"`
}

type candidate struct {
	Path   string `json:"path"`
	Kind   string `json:"kind"`
	Chosen bool   `json:"chosen"`
	Note   string `json:"note"`
}

type info struct {
	Version    string      `json:"version"`
	Go         string      `json:"go"`
	PJRT       version     `json:"pjrt"`
	Plugin     *plugin     `json:"plugin"`
	Candidates []candidate `json:"candidates"`
	Error      string      `json:"error,omitempty"`
}

//export pwGoInfo
func pwGoInfo() *C.char {
	found, p, err := embedded.Plugin()
	i := info{Version: base.Version, Go: runtime.Version(), PJRT: version{abi.Major, abi.Minor}}
	for _, c := range found.Candidates {
		i.Candidates = append(i.Candidates, candidate{c.Path, c.Kind, c.Chosen, c.Note})
	}
	if err != nil {
		i.Error = status.CodeOf(err).String() + ": " + err.Error()
		return text(i)
	}
	major, minor := p.Version()
	i.Plugin = &plugin{found.Path, found.Kind, found.Why, version{major, minor}, p.Attributes()}
	return text(i)
}

//export pwGoTraceStart
func pwGoTraceStart(path *C.char) *C.char {
	if path == nil {
		return refusal(status.New(status.InvalidArgument, "a trace needs the path of a file to be written to"))
	}
	return refusal(profile.StartTrace(C.GoString(path)))
}

//export pwGoTraceStop
func pwGoTraceStop() *C.char { return refusal(profile.StopTrace()) }

// refusal converts an error to what the C API returns: NULL for nil.
func refusal(err error) *C.char {
	if err == nil {
		return nil
	}
	return C.CString(base.Refusal(err))
}

//export pwGoShutdown
func pwGoShutdown(timeoutMS C.int64_t, exits C.bool) *C.char {
	timeout := time.Duration(timeoutMS) * time.Millisecond
	end := cluster.Shutdown
	if exits {
		end = cluster.Exit
	}
	err := end(timeout)
	if other := embedded.Shutdown(timeout); err == nil {
		err = other
	}
	return refusal(err)
}
