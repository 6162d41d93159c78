package pjrt

// #include "driver.h"
import "C"

import (
	"context"
	"maps"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/device"
)

// NewKind makes the device.Kind of a plugin. o.Devices is how many devices a driver gets; 0 means all, but one for the
// CPU.
func NewKind(p *Plugin, o ClientOptions) device.Kind { return kind{p, o} }

type kind struct {
	plugin  *Plugin
	options ClientOptions
}

// Join makes a client. For an island of several members the plugin gets its rank and the rendezvous store.
func (k kind) Join(ctx context.Context, m device.Membership) (device.Driver, error) {
	if ctx.Err() != nil {
		return nil, waitEnded(ctx)
	}
	o := k.options
	if o.Devices == 0 && k.plugin.Kind() == "cpu" {
		o.Devices = 1
	}
	if m.Nodes > 1 {
		if k.plugin.Kind() == "cpu" {
			// Some CPU plugins would ignore their rank and behave like an island of one.
			return nil, status.New(status.Unimplemented,
				"plugin %s has no interconnect of its own to join %d members: join each by itself", k.plugin.path, m.Nodes)
		}
		if m.Store == nil {
			return nil, status.New(status.InvalidArgument, "an island of %d members needs a rendezvous store", m.Nodes)
		}
		if m.Node < 0 || m.Node >= m.Nodes {
			return nil, status.New(status.InvalidArgument, "member %d of %d: members are counted from 0", m.Node, m.Nodes)
		}
		o.Values = maps.Clone(o.Values)
		if o.Values == nil {
			o.Values = map[string]any{}
		}
		o.Values["node_id"], o.Values["num_nodes"] = m.Node, m.Nodes
		o.Store = m.Store
	}
	c, err := k.plugin.Create(o)
	if err != nil {
		return nil, err
	}
	if c.platform == "cpu" && o.OwnProcess {
		C.pwdrv_sort_small_blocks()
	}
	return c, nil
}
