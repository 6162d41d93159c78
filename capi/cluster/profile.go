package cluster

import (
	"context"

	"github.com/openpathways/pathways/capi/profile"
)

func init() {
	profile.Register(func() (sources []profile.Source) {
		for _, s := range sessions.Open() {
			if !s.closed.Load() {
				sources = append(sources, s.startProfile)
			}
		}
		return sources
	})
}

// startProfile makes the workers of a session record, see profile.Source.
func (s *session) startProfile() (func() profile.Profile, error) {
	ctx, cancel := context.WithTimeout(s.ctx, profile.Patience)
	defer cancel()
	stop, err := s.cluster.StartProfile(ctx)
	if err != nil {
		return nil, err
	}
	return func() profile.Profile {
		ctx, cancel := context.WithTimeout(s.ctx, profile.Patience)
		defer cancel()
		p := stop(ctx)
		return profile.Profile{Devices: p.Devices, Spans: p.Spans, Events: p.Events, Dropped: p.Dropped, Warnings: p.Missing,
			Keep: p.Keep, MaxTrace: p.MaxTrace}
	}, nil
}
