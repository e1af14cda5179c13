//! One test of all operations: open, survey, area, arena, insert, count, remove, unmap.

mod common;

use std::time::Duration;

use common::{COUNTED_BYTES, Mutatee, hand_patch, until, within};
use ingraft_model::{Avma, ThreadIdentity, layout};
use ingraft_process::{ApplyOptions, DataAreaRequest};

fn maps_of(target: &ingraft_process::Target) -> Vec<String> {
    let maps = target.maps().expect("maps");
    maps.iter().filter(|m| !m.path.as_os_str().is_empty()).map(|m| format!("{:?} {:?}", m.range, m.path)).collect()
}

#[test]
fn insert_count_remove() {
    within(Duration::from_secs(120), || {
        let mutatee = Mutatee::start("proc_worker", &["4"]);
        let target = mutatee.target();
        let counted = mutatee.address("counted");
        let before = maps_of(&target);

        let survey = target.survey(None).unwrap();
        assert_eq!(survey.identity, ThreadIdentity::FsOffset(0x2d0));
        assert_eq!(survey.threads.len(), 5);
        assert!(survey.threads.iter().all(|t| t.is_64_bit && t.gs_base == 0));

        let request = DataAreaRequest { identity: survey.identity, ..DataAreaRequest::default() };
        let area = target.create_area(&request).unwrap();
        let layout = area.layout();
        assert!(layout.base.0 + 2 * layout.stride < 1 << 31);
        assert_eq!(area.identity().unwrap(), survey.identity);
        assert_eq!(area.holder().unwrap(), ingraft_process::ProcessIdentity::ours().unwrap());
        assert_eq!(area.try_lock(), Some(true));
        let mut alive = [0; 4];
        target.read(Avma(layout.alive().into()), &mut alive).unwrap();
        assert_eq!(alive, [1, 0, 0, 0]);

        let file =
            target.files().unwrap().into_iter().find(|f| f.path.to_string_lossy().contains("proc_worker")).unwrap();
        let end = file.mappings.last().unwrap().range.end;
        let arena = target.map_arena(&(file.base..end), 4096).unwrap();
        let patch = hand_patch(counted, arena.start, layout.counter(0));
        for round in 0..50 {
            let applied = target.apply(&patch.insert, &ApplyOptions::default()).unwrap();
            assert_eq!(applied.threads, 5);
            let value = area.counter(0, 0).unwrap();
            until("calls are counted", || area.counter(0, 0).unwrap() > value + 1000);
            let removed = target.apply(&patch.remove, &ApplyOptions::default()).unwrap();
            let mut bytes = [0; 13];
            target.read(counted, &mut bytes).unwrap();
            assert_eq!(bytes, COUNTED_BYTES);
            if round % 10 == 0 {
                println!("moved {} {}", applied.moved, removed.moved);
            }
        }
        until("the arena is empty", || target.quiet(&patch.remove.retired).unwrap());
        target.unmap(&[arena, layout.range()]).unwrap();
        assert_eq!(maps_of(&target), before);
        assert_eq!(target.status().unwrap().tracer, 0);
        assert_eq!(target.find_areas().unwrap(), []);
        assert!(u64::from(layout::COUNTERS) < layout.stride);
        mutatee.finish();
    });
}
