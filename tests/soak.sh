#!/usr/bin/env bash
# Repeats Go's random checks, each for its part of some seconds: `make soak-go` calls it.
#
#   tests/soak.sh SECONDS [REGULAR EXPRESSION OF TEST NAMES]
#
# Each repetition has new seeds. What fails says by which seed it does so again. A repetition that has begun goes on to
# its end, which takes some seconds.
set -euo pipefail
seconds=$1 only=${2:-.}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

# Package, tags ("-": none), names of tests, and flags: one line for each check.
checks() {
  local file names tags
  for file in $(git grep -l 'rapid\.Check' -- '*_test.go'); do
    names=$(awk '/^func Test/ { sub(/\(.*/, "", $2); name = $2 } /rapid\.Check/ { print name }' "$file" |
      { grep -E "$only" || true; } | sort -u | paste -sd '|')
    tags=$(sed -n 's|^//go:build \([a-z]*\)$|\1|p' "$file")
    test -z "$names" || echo "./$(dirname "$file") ${tags:--} ^($names)\$ -rapid.checks=1000"
  done
  while read -r name flags; do
    grep -qE "$only" <<<"$name" && echo "./core/cluster - ^$name\$ $flags"
  done <<'EOF'
TestSimulation -simulations=100
TestSimulationOfMany -simulations-of-many=1 -many=64
TestThingsOfRandomSizes -sizes=100 -sizes-from=0
TestThingsOfAllSizes -sizes-to=200
EOF
}

mapfile -t all < <(checks)
if test ${#all[@]} = 0; then
  echo "no random check of Go has a name like $only" >&2
  exit 2
fi
failed=0
for check in "${all[@]}"; do
  read -r package tags names flags <<<"$check"
  binary=$built/$(tr / - <<<"$package")$tags.test
  test -x "$binary" || go test -c -tags "${tags#-}" -o "$binary" "$package"
  end=$((SECONDS + seconds / ${#all[@]})) times=0
  while test $times = 0 -o $SECONDS -lt $end; do
    times=$((times + 1))
    # shellcheck disable=SC2086 # flags are words
    if ! (cd "$package" && "$binary" -test.run "$names" -test.timeout 1h $flags) >"$built/log" 2>&1; then
      echo "== $package $names failed"
      cat "$built/log"
      failed=1
      break
    fi
  done
  echo "== $package $names: $times times"
done
exit $failed
