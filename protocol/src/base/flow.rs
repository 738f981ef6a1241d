// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Tables of states and events, with a count of each transition.
//!
//! [`flow!`](crate::flow!) declares the states of an object, its events, and all possible
//! transitions. The object stores its state; [`Counts`] changes and counts it.

use core::fmt;

/// Maximum number of states of a table.
const STATES: usize = 8;
/// Maximum number of events of a table.
const EVENTS: usize = 12;

/// A table of states and events, made by [`flow!`](crate::flow!).
pub trait Flow: Copy + 'static {
    /// Type of the events.
    type Event: Copy + 'static;
    /// All states.
    const STATES: &'static [Self];
    /// All events.
    const EVENTS: &'static [Self::Event];
    /// Returns the index of the state in [`Flow::STATES`].
    fn index(self) -> usize;
    /// Returns the index of an event in [`Flow::EVENTS`].
    fn event_index(event: Self::Event) -> usize;
    /// Returns the name of the state as in the source.
    fn name(self) -> &'static str;
    /// Returns the name of an event as in the source.
    fn event_name(event: Self::Event) -> &'static str;
    /// Returns the state after `event`; `None` if the event is impossible in this state.
    fn next(self, event: Self::Event) -> Option<Self>;
}

/// Declares states, events and transitions of an object. All other pairs of state and event are
/// impossible.
#[macro_export]
macro_rules! flow {
    (
        $(#[$sdoc:meta])* states $state:ident { $($(#[$sd:meta])* $s:ident,)* }
        $(#[$edoc:meta])* events $event:ident { $($(#[$ed:meta])* $e:ident,)* }
        transitions { $($from:ident + $on:ident => $to:ident;)* }
    ) => {
        $(#[$sdoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $state { $($(#[$sd])* $s,)* }

        $(#[$edoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $event { $($(#[$ed])* $e,)* }

        impl $crate::base::flow::Flow for $state {
            type Event = $event;
            const STATES: &'static [Self] = &[$($state::$s,)*];
            const EVENTS: &'static [$event] = &[$($event::$e,)*];

            #[inline]
            fn index(self) -> usize {
                self as usize
            }

            #[inline]
            fn event_index(event: $event) -> usize {
                event as usize
            }

            fn name(self) -> &'static str {
                match self { $($state::$s => stringify!($s),)* }
            }

            fn event_name(event: $event) -> &'static str {
                match event { $($event::$e => stringify!($e),)* }
            }

            #[inline]
            fn next(self, event: $event) -> Option<Self> {
                match (self, event) {
                    $(($state::$from, $event::$on) => Some($state::$to),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $state {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str($crate::base::flow::Flow::name(*self))
            }
        }

        impl core::fmt::Display for $event {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(<$state as $crate::base::flow::Flow>::event_name(*self))
            }
        }
    };
}

/// Number of times that each transition was made.
#[derive(Clone, Debug)]
pub struct Counts<F: Flow> {
    made: [[u64; EVENTS]; STATES],
    /// Number of impossible events.
    impossible: u64,
    flow: core::marker::PhantomData<F>,
}

impl<F: Flow> Default for Counts<F> {
    fn default() -> Self {
        const { assert!(F::STATES.len() <= STATES && F::EVENTS.len() <= EVENTS) };
        Self {
            made: [[0; EVENTS]; STATES],
            impossible: 0,
            flow: core::marker::PhantomData,
        }
    }
}

impl<F: Flow> Counts<F> {
    /// Changes `state` by `event` and counts the transition. Returns false, without a change, if
    /// `event` is impossible in this state.
    #[inline]
    pub fn step(&mut self, state: &mut F, event: F::Event) -> bool {
        let Some(next) = state.next(event) else {
            self.impossible = self.impossible.wrapping_add(1);
            return false;
        };
        let row = self.made.get_mut(state.index());
        if let Some(n) = row.and_then(|row| row.get_mut(F::event_index(event))) {
            *n = n.wrapping_add(1);
        }
        *state = next;
        true
    }

    /// Returns the number of times that `event` happened in `state`.
    pub fn made(&self, state: F, event: F::Event) -> u64 {
        let row = self.made.get(state.index());
        row.and_then(|row| row.get(F::event_index(event)))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the number of impossible events, each of which is an error of the state machine.
    pub fn impossible(&self) -> u64 {
        self.impossible
    }

    /// Returns all possible transitions with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (F, F::Event, F, u64)> + '_ {
        F::STATES.iter().flat_map(move |s| {
            F::EVENTS
                .iter()
                .filter_map(move |e| Some((*s, *e, s.next(*e)?, self.made(*s, *e))))
        })
    }
}

/// Prints one line per transition that was made.
impl<F: Flow> fmt::Display for Counts<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (from, event, to, n) in self.iter().filter(|t| t.3 != 0) {
            let (from, event, to) = (from.name(), F::event_name(event), to.name());
            writeln!(f, "{from} + {event} -> {to}: {n}")?;
        }
        if self.impossible != 0 {
            writeln!(f, "impossible: {}", self.impossible)?;
        }
        Ok(())
    }
}
