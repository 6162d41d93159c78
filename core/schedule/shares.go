package schedule

import "math"

// Tenant is the owner of sessions, with the terms on which they share devices with those of others. A Tenant does not
// change. If its terms do, an event Terms brings another Tenant of the same ID, and later gangs have that one.
type Tenant struct {
	ID     uint32
	Weight float64 // above 0
	// Class says who comes first: tenants of lower classes share what those of higher ones leave, and Floor in any case.
	Class int
	// AtLeast and AtMost are parts of a device's time, from 0 to 1; 0 is no bound. The sum of all AtLeast is less than the
	// whole.
	AtLeast, AtMost float64
}

// Floor is the part of a device's time that a class gets however much the classes above it want, so that no tenant
// starves. It is less if the tenants' AtLeast leave less for each class.
const Floor = 0.05

// claim is a tenant's demand on a device, with the share that it gets.
type claim struct {
	of   *Tenant
	part float64 // of the device's time
	done bool    // scratch of fill
}

// divideTime divides a device's time among tenants that all want more of it than they get. It returns the level: the
// part per unit of weight for tenants of the highest class whose bounds do not apply.
//
// From the highest class down, each class gets what is left, except what the lower ones get in any case: their Floor,
// and their tenants' AtLeast. Within a class parts are in proportion to weights, except for bounds. No part is 0: a
// class gets more than its tenants' AtLeast.
func divideTime(claims []claim) (level float64) {
	top := nextClass(claims, math.MaxInt)
	capacity, floor := 1.0, floorOf(claims)
	for class := nextClass(claims, top); class != none; class = nextClass(claims, class) {
		capacity -= reserved(claims, class, floor)
	}
	for class := top; class != none; class = nextClass(claims, class) {
		if class != top {
			capacity += reserved(claims, class, floor)
		}
		got, at := fill(claims, class, capacity)
		if capacity -= got; class == top {
			level = at
		}
	}
	return level
}

// none is no class.
const none = math.MinInt

// nextClass returns the highest class below one, or none.
func nextClass(claims []claim, above int) int {
	next := none
	for i := range claims {
		if c := claims[i].of.Class; c < above {
			next = max(next, c)
		}
	}
	return next
}

// floorOf returns Floor, or less if the tenants' AtLeast do not leave that much for every class.
func floorOf(claims []claim) float64 {
	spare, classes := 1.0, 0.0
	for i := range claims {
		spare -= claims[i].of.AtLeast
	}
	for class := nextClass(claims, math.MaxInt); class != none; class = nextClass(claims, class) {
		classes++
	}
	return min(Floor, spare/classes)
}

// reserved is the share that every class but the highest has in any case.
func reserved(claims []claim, class int, floor float64) float64 {
	least, most := 0.0, 0.0
	for i := range claims {
		if t := claims[i].of; t.Class == class {
			least += t.AtLeast
			most += t.most()
		}
	}
	return min(floor+least, most)
}

// fill divides a capacity among the tenants of a class, and returns how much they got, and the part per unit of weight
// for those whose bounds do not apply. Each round fixes tenants at their bounds on one side, the side that changes
// more, since the other side's bounds may no longer apply after that.
func fill(claims []claim, class int, capacity float64) (got, level float64) {
	for i := range claims {
		claims[i].done = claims[i].of.Class != class
	}
	for {
		weights, free := 0.0, capacity
		for i := range claims {
			switch c := &claims[i]; {
			case c.of.Class != class:
			case c.done:
				free -= c.part
			default:
				weights += c.of.Weight
			}
		}
		if weights == 0 {
			break
		}
		level = max(0, free) / weights
		under, over := 0.0, 0.0
		for i := range claims {
			if c := &claims[i]; !c.done {
				c.part = min(max(level*c.of.Weight, c.of.AtLeast), c.of.most())
				under += max(0, c.part-level*c.of.Weight)
				over += max(0, level*c.of.Weight-c.part)
			}
		}
		for i := range claims {
			c := &claims[i]
			change := c.part - level*c.of.Weight
			c.done = c.done || under >= over && change > 0 || over >= under && change < 0
		}
		if under == 0 && over == 0 {
			break
		}
	}
	for i := range claims {
		if c := &claims[i]; c.of.Class == class {
			got += c.part
		}
	}
	return got, level
}

// most is the part of a device's time that the tenant may have.
func (t *Tenant) most() float64 {
	if t.AtMost > 0 {
		return t.AtMost
	}
	return 1
}

// Shares returns the part of a device's time that each of some tenants gets while all of them want more.
func Shares(of []*Tenant) []float64 {
	claims := make([]claim, len(of))
	for i, t := range of {
		claims[i].of = t
	}
	divideTime(claims)
	parts := make([]float64, len(of))
	for i := range claims {
		parts[i] = claims[i].part
	}
	return parts
}
