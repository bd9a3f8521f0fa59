"""ultralytics/yolov5#292."""
