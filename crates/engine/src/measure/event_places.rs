//! The processor events that threads of a target read themselves. Each event has a number there, by which code names it.

use std::sync::Arc;

use ingraft_model::layout::EVENTS_MAX;
use ingraft_process::EventAttributes;

/// An event and its users.
#[derive(Clone, Debug)]
struct EventPlace {
    name: Arc<str>,
    attributes: EventAttributes,
    users: u32,
}

/// All events of a target.
#[derive(Debug, Default)]
pub struct EventPlaces([Option<EventPlace>; EVENTS_MAX as usize]);

impl EventPlaces {
    /// The number of an event, with one more user; `None` if there are too many events. `attributes` is called if the event is new.
    pub fn take<E>(
        &mut self,
        name: &Arc<str>,
        attributes: impl FnOnce() -> Result<EventAttributes, E>,
    ) -> Result<Option<u32>, E> {
        let known = (0..).zip(self.0.iter_mut().map(Option::as_mut));
        if let Some((number, place)) = known.filter_map(|(n, p)| Some((n, p?))).find(|(_, p)| p.name == *name) {
            place.users += 1;
            return Ok(Some(number));
        }
        let Some((number, place)) = (0..).zip(&mut self.0).find(|(_, p)| p.is_none()) else { return Ok(None) };
        *place = Some(EventPlace { name: Arc::clone(name), attributes: attributes()?, users: 1 });
        Ok(Some(number))
    }

    /// Removes one user of an event. Returns whether it was the last; the number stays taken until [`EventPlaces::free`] gets it.
    pub fn leave(&mut self, number: u32) -> bool {
        let Some(place) = self.0.get_mut(number as usize).and_then(Option::as_mut) else { return false };
        place.users = place.users.saturating_sub(1);
        place.users == 0
    }

    /// Frees the number of an event without users, once no code or thread of the target uses it any more.
    pub fn free(&mut self, number: u32) {
        if let Some(place) = self.0.get_mut(number as usize).filter(|p| p.as_ref().is_some_and(|p| p.users == 0)) {
            *place = None;
        }
    }

    /// Attributes with which threads open their counters, each with the number of its event.
    pub fn attributes(&self) -> impl Iterator<Item = (u32, &EventAttributes)> {
        (0..).zip(&self.0).filter_map(|(number, place)| Some((number, &place.as_ref()?.attributes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_share_numbers_and_give_them_back() {
        let mut places = EventPlaces::default();
        let take = |places: &mut EventPlaces, name: &str| {
            places.take(&Arc::from(name), || Ok::<_, ()>([7; 9])).expect("attributes")
        };
        assert_eq!(
            (take(&mut places, "a"), take(&mut places, "b"), take(&mut places, "a")),
            (Some(0), Some(1), Some(0))
        );
        assert!(!places.leave(0));
        assert!(places.leave(0));
        places.free(0);
        assert_eq!(places.attributes().map(|(n, _)| n).collect::<Vec<_>>(), [1]);
        for n in [0, 2, 3, 4, 5, 6, 7] {
            assert_eq!(take(&mut places, &n.to_string()), Some(n));
        }
        assert_eq!(take(&mut places, "one too many"), None);
        // a number that has a user again is not freed
        assert!(places.leave(1));
        assert_eq!(take(&mut places, "b"), Some(1));
        places.free(1);
        assert_eq!(take(&mut places, "b"), Some(1));
        assert_eq!(places.take(&Arc::from("c"), || Err::<EventAttributes, _>(3)), Ok(None));
    }
}
